"""The settings of decoding."""

from __future__ import annotations

from dataclasses import dataclass

from hill.errors import ConfigError
from hill.settings import at_least, one_of

STRATEGIES = ("auto", "closure", "ancestors", "top-down", "path", "safe", "raw")
TUNINGS = ("global", "level", "label", "off")
TUNE_METRICS = ("micro_f1", "macro_f1", "hierarchical_f1", "mean_f1")
CALIBRATIONS = ("auto", "temperature", "isotonic", "off")


@dataclass(frozen=True)
class DecodeConfig:
    """How scores become label sets."""

    strategy: str = "auto"
    """auto: chosen on dev; closure: a label counts if it or one below it does; ancestors: labels above their own
    threshold and all above them; top-down: only if all above it count; path: the k best paths; safe: those, cut where
    they are no longer certain; raw: every label for itself, consistent or not, as in the paper."""
    threshold: float = 0.5
    """Score above which a label is predicted."""
    tune: str = "global"
    """Choose on dev after training: global, one threshold; level, one for each level; label, one for each label; off,
    none. With strategy auto this is chosen too."""
    tune_metric: str = "micro_f1"
    """What thresholds are chosen for: micro_f1, macro_f1, hierarchical_f1, or mean_f1, the mean of the three. With
    strategy auto this is chosen too."""
    support: int = 10
    """Fewest gold documents in dev for which a label has its own threshold; the others of a level share one."""
    k: int = 1
    """Strategies path and safe: how many paths."""
    abstain: float = 0.0
    """Documents whose highest score is not above this get no label; 0 for never."""
    calibrate: str = "auto"
    """Fit on dev what makes scores probabilities: temperature, one for each level; isotonic, a curve for each label or,
    where it has few documents, each level; auto, the best of both and none; off, none."""
    keep: int = 0
    """Scores of a document that are kept, its best; the others count as 0. 0 for all of them, of more than 10,000
    labels for 100."""

    def __post_init__(self) -> None:
        one_of(self.strategy, STRATEGIES, "decode.strategy")
        one_of(self.tune, TUNINGS, "decode.tune")
        one_of(self.tune_metric, TUNE_METRICS, "decode.tune_metric")
        one_of(self.calibrate, CALIBRATIONS, "decode.calibrate")
        at_least(self.support, 1, "decode.support")
        at_least(self.k, 1, "decode.k")
        at_least(self.keep, 0, "decode.keep")
        for name in ("threshold", "abstain"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"decode.{name} is {getattr(self, name)}; expected a number from 0 to 1")

    @property
    def thresholded(self) -> bool:
        """Whether the strategy compares scores with thresholds."""
        return self.strategy != "path"

    @property
    def tunable(self) -> bool:
        """Whether anything is to be chosen on dev."""
        return self.strategy == "auto" or self.calibrate != "off" or (self.thresholded and self.tune != "off")
