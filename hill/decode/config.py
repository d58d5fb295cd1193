"""The settings of decoding."""

from __future__ import annotations

from dataclasses import dataclass

from hill.errors import ConfigError
from hill.settings import check_at_least, check_one_of

STRATEGIES = ("auto", "closure", "ancestors", "top-down", "path", "safe", "raw")
TUNINGS = ("global", "level", "label", "off")
TUNE_METRICS = ("micro_f1", "macro_f1", "hierarchical_f1", "mean_f1")
CALIBRATIONS = ("auto", "temperature", "isotonic", "off")


@dataclass(frozen=True)
class DecodeConfig:
    """How scores become label sets."""

    strategy: str = "auto"
    """auto: chosen on dev; closure: a label if its score or that of a descendant is above the threshold; ancestors:
    labels whose own score is above their threshold, with all ancestors; top-down: a label only if all its ancestors
    are predicted; path: the k best paths; safe: these paths, cut below the last label above the threshold; raw: each
    label by itself as in the paper, consistent or not."""
    threshold: float = 0.5
    """A label is predicted if its score is above this threshold."""
    tune: str = "global"
    """Choose thresholds on dev after training: global, one for all labels; level, one per level; label, one per label;
    off, none. Strategy auto chooses this setting too."""
    tune_metric: str = "micro_f1"
    """The metric that thresholds maximise: micro_f1, macro_f1, hierarchical_f1, or mean_f1, the mean of the three.
    Strategy auto chooses this setting too."""
    support: int = 10
    """Minimum number of gold documents in dev of a label with its own threshold; the other labels of a level share
    one."""
    k: int = 1
    """Strategies path and safe: number of paths."""
    abstain: float = 0.0
    """Documents whose highest score is not above this value get no label; 0 never abstains."""
    calibrate: str = "auto"
    """Fit calibration on dev: temperature, one per level; isotonic, one curve per label, or per level for labels with
    few documents; auto, the best of both and none; off, none."""
    keep: int = 0
    """Number of highest scores that are kept per document; the others count as 0. 0 keeps all scores, or 100 with more
    than 10,000 labels."""

    def __post_init__(self) -> None:
        check_one_of(self.strategy, STRATEGIES, "decode.strategy")
        check_one_of(self.tune, TUNINGS, "decode.tune")
        check_one_of(self.tune_metric, TUNE_METRICS, "decode.tune_metric")
        check_one_of(self.calibrate, CALIBRATIONS, "decode.calibrate")
        check_at_least(self.support, 1, "decode.support")
        check_at_least(self.k, 1, "decode.k")
        check_at_least(self.keep, 0, "decode.keep")
        for name in ("threshold", "abstain"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"decode.{name} is {getattr(self, name)}; expected a number from 0 to 1")

    @property
    def thresholded(self) -> bool:
        """Whether the strategy compares scores with thresholds."""
        return self.strategy != "path"

    @property
    def tunable(self) -> bool:
        """Whether anything is chosen on dev."""
        return self.strategy == "auto" or self.calibrate != "off" or (self.thresholded and self.tune != "off")
