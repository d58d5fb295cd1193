"""The models that are served, by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from hill.decode import STRATEGIES, DecodeConfig, Decoder
from hill.predictor import Predictor
from hill.taxonomy import Taxonomy

MAX_PATHS = 100
"""Maximum number of paths that are shown per label; a DAG can have very many."""
MAX_DECODERS = 64
"""Decoders that are cached per model, one per combination of strategy and threshold."""


class ModelRegistry:
    """The served models in their order; the first is the default.

    Args:
        models: the folder, the predictor and `hill.explain.explain` of each model; None instead of `explain` if the
            model cannot be explained. The name of the folder becomes the name of the model.
    """

    def __init__(self, models: Iterable[tuple[Path, Predictor, Callable[..., Any] | None]]) -> None:
        self.models: dict[str, ServedModel] = {}
        for folder, predictor, explain in models:
            base = folder.resolve().name or "model"
            names = chain([base], (f"{base}-{number}" for number in count(2)))
            name = next(name for name in names if name not in self.models)
            saved_at = folder.stat().st_mtime if folder.exists() else 0.0
            self.models[name] = ServedModel(name, predictor, explain, saved_at)

    @property
    def default(self) -> ServedModel:
        """The model for requests that name none."""
        return next(iter(self.models.values()))


@dataclass(eq=False)
class ServedModel:
    """A model with its name and its cached decoders."""

    name: str
    predictor: Predictor
    explain: Callable[..., Any] | None = None
    """`hill.explain.explain`, or None if the model cannot be explained."""
    saved_at: float = 0.0
    """When the model was saved, in seconds since 1970."""

    def __post_init__(self) -> None:
        self.decoder = lru_cache(MAX_DECODERS)(self._make_decoder)

    @property
    def config(self) -> DecodeConfig:
        """The model's decoding settings; if the strategy is still `auto`, it is `closure`."""
        config = self.predictor.decode_config
        return replace(config, strategy="closure") if config.strategy == "auto" else config

    @cached_property
    def labels(self) -> LabelIndex:
        """The labels, for listing and searching."""
        return LabelIndex(self.predictor.taxonomy)

    def _make_decoder(self, strategy: str | None = None, threshold: float | None = None) -> Decoder:
        """A decoder with the model's settings, except for those given; a threshold replaces those per label.

        A threshold without a strategy, for a model that predicts the best path, means all labels above it.
        """
        if strategy is None and threshold is not None and not self.config.thresholded:
            strategy = "ancestors"
        config, thresholds = self.config, self.predictor.thresholds
        if strategy:
            config = replace(config, strategy=strategy)
        if threshold is not None:
            config, thresholds = replace(config, threshold=threshold), None
        return Decoder(self.predictor.taxonomy, config, thresholds, self.predictor.calibrator)

    def summary(self, default: bool) -> dict[str, Any]:
        """The fields of `ModelSummary`."""
        taxonomy = self.predictor.taxonomy
        return {"name": self.name, "labels": len(taxonomy), "levels": len(taxonomy.levels), "default": default}

    def to_dict(self, default: bool) -> dict[str, Any]:
        """The fields of `ModelDetails`."""
        predictor: Any = self.predictor
        config: Any = getattr(predictor, "model_config", None)
        encoder = config.encoder if getattr(config, "text", "") == "transformer" else None
        if encoder and encoder.startswith((".", "/", "~")):
            encoder = Path(encoder).name  # clients must not learn the folders of this machine
        return {
            **self.summary(default),
            "model": predictor.name,
            "encoder": encoder,
            "strategies": [strategy for strategy in STRATEGIES if strategy != "auto"],
            "strategy": self.config.strategy,
            "threshold": self.config.threshold,
            "thresholds_differ": len({*predictor.threshold_range}) > 1,
            # JSON has no infinity and no NaN
            "metrics": json.loads(json.dumps(predictor.metrics), parse_constant=lambda _: None),
            "max_length": predictor.max_length,
            "explains": self.explain is not None,
        }


class LabelIndex:
    """The labels of a taxonomy, for listing and searching."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy
        self._keys = [(label.id.casefold(), label.name.casefold()) for label in taxonomy]

    def search(self, query: str) -> list[int]:
        """Rows of the labels whose id or name contains all words of the query, best first.

        The order is: exact matches, matches at the beginning, matches at the beginning of a word, the rest. Shorter
        names come first among equals.
        """
        query = query.casefold().strip()

        def rank(row: int) -> tuple[int, int, int]:
            id, name = self._keys[row]
            matches = (query in (id, name), id.startswith(query) or name.startswith(query), f" {query}" in name, True)
            return matches.index(True), len(name), row

        words, keys = query.split(), enumerate(self._keys)
        return sorted((row for row, (id, name) in keys if all(w in id or w in name for w in words)), key=rank)

    def summary(self, row: int) -> dict[str, Any]:
        """The fields of `LabelSummary`."""
        taxonomy, label = self._taxonomy, self._taxonomy[row]
        return {
            "id": label.id,
            "name": label.name,
            "description": label.description,
            "level": int(taxonomy.depth[row]),
            "children": len(taxonomy.children(row)),
            "parents": taxonomy.decode(taxonomy.parents(row)),
        }

    def to_dict(self, row: int) -> dict[str, Any]:
        """The fields of `LabelDetails`."""
        paths = [self._taxonomy.decode(path) for path in islice(self._taxonomy.paths(row), MAX_PATHS)]
        return {**self.summary(row), "paths": paths}
