"""The models that are served, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any

from hill.decode import STRATEGIES, DecodeConfig, Decoder
from hill.predictor import Predictor
from hill.taxonomy import Taxonomy
from hill.types import IntArray

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
            name = self._unique_name(folder.resolve().name or "model")
            saved_at = folder.stat().st_mtime if folder.exists() else 0.0
            self.models[name] = ServedModel(name, predictor, explain, saved_at)

    @property
    def default(self) -> ServedModel:
        """The model for requests that name none."""
        return next(iter(self.models.values()))

    def _unique_name(self, name: str) -> str:
        if name not in self.models:
            return name
        return next(other for n in count(2) if (other := f"{name}-{n}") not in self.models)


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
        """A decoder with the model's settings, except for those given; a threshold replaces those per label."""
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
        encoder = getattr(getattr(predictor, "model_config", None), "encoder", None)
        if encoder and encoder.startswith((".", "/", "~")):
            encoder = Path(encoder).name  # clients must not learn the folders of this machine
        return {
            **self.summary(default),
            "model": predictor.name,
            "encoder": encoder,
            "strategies": [strategy for strategy in STRATEGIES if strategy != "auto"],
            "strategy": self.config.strategy,
            "threshold": self.config.threshold,
            "thresholds_differ": predictor.thresholds is not None,
            "metrics": _replace_non_finite(predictor.metrics),
            "max_length": predictor.max_length,
            "explains": self.explain is not None,
        }


class LabelIndex:
    """The labels of a taxonomy, for listing and searching."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy

    @cached_property
    def _search_keys(self) -> list[tuple[str, str]]:
        """Case-folded id and name per label."""
        return [(label.id.casefold(), label.name.casefold()) for label in self._taxonomy]

    def children(self, parent: str | None) -> IntArray:
        """Rows of the children of a label, or of the roots."""
        return self._taxonomy.roots if parent is None else self._taxonomy.children(self._taxonomy.row(parent))

    def search(self, query: str) -> list[int]:
        """Rows of the labels whose id or name contains all words of the query, best first.

        The order is: exact matches, matches at the beginning, matches at the beginning of a word, the rest. Shorter
        names come first among equals.
        """
        query = query.casefold().strip()
        words = query.split()
        keys = self._search_keys
        matches = [row for row, (id, name) in enumerate(keys) if all(w in id or w in name for w in words)]
        return sorted(matches, key=lambda row: (_match_rank(query, *keys[row]), len(keys[row][1]), row))

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

    def to_dict(self, label_id: str) -> dict[str, Any]:
        """The fields of `LabelDetails`."""
        taxonomy, row = self._taxonomy, self._taxonomy.row(label_id)
        paths = [taxonomy.decode(path) for path in islice(taxonomy.paths(row), MAX_PATHS)]
        return {**self.summary(row), "paths": paths}


def _match_rank(query: str, label_id: str, name: str) -> int:
    if query in (label_id, name):
        return 0
    if label_id.startswith(query) or name.startswith(query):
        return 1
    return 2 if f" {query}" in name else 3


def _replace_non_finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not support, by None."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
