"""The models that are served, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any

from hill.decode import STRATEGIES, DecodeConfig, Decoder
from hill.predictor import Predictor
from hill.serve.labels import Labels

DECODERS = 64
"""Ways of decoding that are kept ready."""


@dataclass(eq=False)
class Served:
    """A model under its name, with what its requests need again and again."""

    name: str
    predictor: Predictor
    explain: Callable[..., Any] | None = None
    """`hill.explain.explain`, for models that can be explained."""
    changed: float = 0.0
    """When the model was saved, in seconds since 1970."""

    def __post_init__(self) -> None:
        self._decoder = lru_cache(DECODERS)(self._make_decoder)

    @property
    def config(self) -> DecodeConfig:
        """How the model itself decodes; an `auto` on which nothing was decided is `closure`."""
        own = self.predictor.decode_config
        return replace(own, strategy="closure") if own.strategy == "auto" else own

    @cached_property
    def labels(self) -> Labels:
        """The labels as they are listed, found and shown."""
        return Labels(self.predictor.taxonomy)

    def decoder(self, strategy: str | None = None, threshold: float | None = None) -> Decoder:
        """The model's own decoding, with another strategy, or one threshold for all labels in place of its own."""
        return self._decoder(strategy, threshold)

    def _make_decoder(self, strategy: str | None, threshold: float | None) -> Decoder:
        own, config = self.predictor, self.config
        config = replace(
            config,
            strategy=strategy or config.strategy,
            threshold=config.threshold if threshold is None else threshold,
        )
        return Decoder(own.taxonomy, config, own.thresholds if threshold is None else None, own.calibrator)

    def short(self, default: bool) -> dict[str, Any]:
        """The model in a list of models."""
        taxonomy = self.predictor.taxonomy
        return {"name": self.name, "labels": len(taxonomy), "levels": len(taxonomy.levels), "default": default}

    def document(self, default: bool) -> dict[str, Any]:
        """What there is to know of the model."""
        known: Any = self.predictor
        return {
            **self.short(default),
            "model": known.name,
            "encoder": _shown(getattr(getattr(known, "model_config", None), "encoder", None)),
            "strategies": [strategy for strategy in STRATEGIES if strategy != "auto"],
            "strategy": self.config.strategy,
            "threshold": self.config.threshold,
            "thresholds_differ": known.thresholds is not None,
            "metrics": _finite(known.metrics),
            "max_length": known.max_length,
            "explains": self.explain is not None,
        }


class Shelf:
    """Served models in their order; the first is the default.

    Args:
        models: folder or name, predictor, what explains it if anything does.
    """

    def __init__(self, models: Iterable[tuple[Path, Predictor, Callable[..., Any] | None]]) -> None:
        self.models: dict[str, Served] = {}
        for folder, predictor, explain in models:
            name = self._unique(folder.resolve().name or "model")
            changed = folder.stat().st_mtime if folder.exists() else 0.0
            self.models[name] = Served(name, predictor, explain, changed)

    def _unique(self, name: str) -> str:
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(each for each in names if each not in self.models)

    @property
    def default(self) -> Served:
        """The model of a request that names none."""
        return next(iter(self.models.values()))


def _shown(encoder: str | None) -> str | None:
    """An encoder's name; of a folder its last name, since where it lies is nobody's business."""
    return Path(encoder).name if encoder and encoder.startswith((".", "/", "~")) else encoder


def _finite(value: Any) -> Any:
    """Plain values that JSON can hold."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
