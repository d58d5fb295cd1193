"""Warm start: a model for a changed taxonomy starts with the weights of a trained model.

`warm_settings` takes over settings, `build_warm` builds the new model, and `warm_start` sets its weights. A
`LabelMapping` says from which old labels each new label starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from tokenizers import Tokenizer
from torch import Tensor

from hill.data import Documents
from hill.data.documents import join_splits
from hill.errors import ConfigError, DataError
from hill.io import check_model, read_object, unusable
from hill.models import MODELS, HTCModel, ModelConfig
from hill.models.base import Axis, copy_text_encoder
from hill.models.inference import SavedModel, upgrade_settings
from hill.settings import Groups
from hill.taxonomy import Taxonomy
from hill.taxonomy.diff import TaxonomyDiff, diff
from hill.types import BoolArray, IntArray

REPLAY, REPEATS = 4, 10
"""A training that continues on new documents reads each of them this often (`REPEATS`), mixed with `REPLAY` times as
many old documents, which are not repeated as long as there are others."""
ALL = "all"
"""The name under which `with_replay` returns all documents."""


@dataclass(frozen=True)
class WarmStartReport:
    """Where the labels (rows of the new taxonomy) and weights (names) of a model started from."""

    copied: IntArray
    """Labels that the old model has."""
    from_relatives: IntArray
    """New labels that start as the mean of their siblings that were copied, else of their parents."""
    from_others: IntArray
    """New roots that start as the mean of copied labels: their children, else the roots, else all of them."""
    fresh: IntArray
    """Labels that start as in a new model: all of them, if no label was copied."""
    fresh_weights: tuple[str, ...]
    """Weights that the old model does not have, or has in another size."""

    def __str__(self) -> str:
        related = len(self.from_relatives) + len(self.from_others)
        return f"{len(self.copied):,} labels copied, {related:,} from related labels, {len(self.fresh):,} new"


def warm_settings(folder: Path, settings: Groups) -> tuple[str, Groups]:
    """The name of a saved model, and the settings of a training that starts from it.

    The settings of the model and the maximum length are those of the saved model, unless they are given.
    """
    check_model(folder)
    saved = read_object(folder / "config.json")
    try:
        model = upgrade_settings(saved["model"], saved["settings"], folder)["model"] | settings.get("model", {})
        data = {"max_length": saved["settings"]["data"]["max_length"]} | settings.get("data", {})
    except (LookupError, TypeError) as error:
        raise unusable(folder, error) from error
    train = settings.get("train", {}) | {"warm_start": str(folder)}
    return saved["model"], {**settings, "model": model, "train": train, "data": data}


def with_replay(
    data: Mapping[str, Documents], added: Documents, dev_share: float, seed: int, repeats: int = REPEATS
) -> dict[str, Documents]:
    """Replace train by new documents and old ones, so that old labels are not forgotten; `ALL` has each of them once.

    Train is read once: it has no document more often than `repeats` times. Dev and test stay as they are; without dev,
    this share of the old and of the new documents is held out.
    """
    old, new = data.get("train") or data.get("data"), added
    if not old:
        raise DataError("there is no train split to replay old documents from; give the data of the earlier training")
    result = dict(data)
    if "dev" not in data:
        old, held_out = old.split(dev_share, seed)
        result["dev"] = held_out
        if round(dev_share * len(new)):
            new, held_out = new.split(dev_share, seed)
            result["dev"] = join_splits({"old": result["dev"], "new": held_out})
    random = np.random.default_rng(seed)
    orders = [random.permutation(len(old)) for _ in range(min(-(-REPLAY * repeats * len(new) // len(old)), repeats))]
    rows = np.concatenate([*orders, np.arange(0)])[: REPLAY * repeats * len(new)]
    repeated = new.take(np.tile(np.arange(len(new)), repeats))
    result["train"] = join_splits({"new": repeated, "old": old.take(np.sort(rows))})
    result[ALL] = join_splits({"old": old, "new": new})
    return result


def build_warm(
    old: SavedModel, documents: Documents, taxonomy: Taxonomy, config: ModelConfig
) -> tuple[HTCModel, Tokenizer, WarmStartReport]:
    """A model with the class, encoder and tokenizer of an old one, for another taxonomy and other documents."""
    old_config = old.model.config
    if old.model.has_solver:
        raise ConfigError(
            f"model '{old.name}' is fitted in one go and has no warm start; train it without --warm-start"
        )
    if type(config) is not type(old_config):
        raise ConfigError(f"the model to start from is a '{old.name}'; use --model {old.name}")
    for name in ("text", "encoder") if config.text == "transformer" else ("text",):
        value, old_value = getattr(config, name), getattr(old_config, name)
        if value != old_value:
            raise ConfigError(
                f"model.{name} is '{value}', but the model to start from has '{old_value}'; set it to that, or train "
                "without --warm-start"
            )
    kind = MODELS[old.name]
    text = copy_text_encoder(old.model.text, config, old.tokenizer).cpu()  # as a new model, wherever the old one is
    assets = kind.prepare(documents, taxonomy, config, old.tokenizer)
    changes = diff(old.taxonomy, taxonomy)
    reordered = not any(map(len, (changes.added, changes.removed, changes.moved)))
    source = np.full(len(taxonomy), -1)
    source[changes.pairs[:, 1]] = changes.pairs[:, 0]
    assets |= kind.adapt_assets(old.model.assets, old_config, config, source, reordered)
    model = kind(text, taxonomy, config, assets)
    model.start()
    return model, old.tokenizer, warm_start(model, old, taxonomy)


@torch.no_grad()
def warm_start(model: HTCModel, old: SavedModel, taxonomy: Taxonomy) -> WarmStartReport:
    """Set the weights of a new model for this taxonomy from those of an old one of the same class and encoder.

    Weights with a label axis are set per label. Two labels are the same if they have the same id, or the same name and
    parents. For the same taxonomy the scores are those of the old model. Step counters start at 0: the state dict only
    has copies of them.
    """
    mapping = LabelMapping(diff(old.taxonomy, taxonomy))
    old_weights, fresh = old.model.state_dict(), []
    axes, old_axes = model.checked_axes(taxonomy), old.model.checked_axes(old.taxonomy)
    for name, weight in model.state_dict().items():
        value = None
        if name in old_weights and old_axes[name] == axes[name]:
            value = mapping.convert(old_weights[name].to(weight.device), weight, axes[name])
        if value is not None:
            weight.copy_(value)
        else:
            fresh.append(name)
    model.start_added(np.flatnonzero(mapping.source < 0))
    return WarmStartReport(mapping.copied, mapping.from_relatives, mapping.from_others, mapping.fresh, tuple(fresh))


class LabelMapping:
    """From which rows of the old taxonomy each row of the new one starts."""

    def __init__(self, changes: TaxonomyDiff) -> None:
        self.old, self.new = changes.a, changes.b
        self.source = np.full(len(self.new), -1)
        """The old row of each new row (L new); -1 for new labels."""
        self.source[changes.pairs[:, 1]] = changes.pairs[:, 0]
        self.copied = np.flatnonzero(self.source >= 0)
        copies = np.ones(len(self.copied)), (self.copied, self.source[self.copied])
        self.weights: csr_array[Any] = csr_array(copies, shape=(len(self.new), len(self.old)))
        """The weight of each old row in each new row (L new, L old)."""
        self.from_others = self._start_roots()
        child, parent = self.new.edge_array.T
        new = child[~self._is_started()[child]]
        self._start_from_mean(np.unique(new), *self._copied_siblings())
        for level in self.new.levels[1:]:
            self._start_from_mean(level[~self._is_started()[level]], child, parent)
        started = self._is_started()
        self.from_relatives = np.setdiff1d(np.flatnonzero(started), np.append(self.copied, self.from_others))
        self.fresh = np.flatnonzero(~started)

    def _is_started(self) -> BoolArray:
        """Which new rows start from old ones."""
        return np.diff(self.weights.indptr) > 0

    def _start_roots(self) -> IntArray:
        """Start new roots from their copied children, else from copied roots, else from all copied labels."""
        new_roots = self.new.roots[self.source[self.new.roots] < 0]
        child, parent = self.new.edge_array.T
        self._start_from_mean(new_roots, parent, child)
        rest = new_roots[~self._is_started()[new_roots]]
        copied_roots = np.intersect1d(self.new.roots, self.copied)
        origins = copied_roots if len(copied_roots) else self.copied
        self._start_from_mean(rest, np.repeat(rest, len(origins)), np.tile(origins, len(rest)))
        return np.intersect1d(new_roots, np.flatnonzero(self._is_started()))

    def _copied_siblings(self) -> tuple[IntArray, IntArray]:
        """Pairs of a new label and a copied label with a common parent, each once."""
        child, parent = self.new.edge_array.T
        size = (len(self.new), len(self.new))
        is_new = self.source[child] < 0
        above, below = (
            csr_array((np.ones(chosen.sum()), (child[chosen], parent[chosen])), shape=size)
            for chosen in (is_new, ~is_new)
        )
        siblings: Any = above @ below.T
        target, origin = siblings.nonzero()
        return target, origin

    def _start_from_mean(self, rows: IntArray, target: IntArray, origin: IntArray) -> None:
        """Start these rows from the mean over the started origins of their (target, origin) pairs."""
        used = np.isin(target, rows) & self._is_started()[origin]
        target, origin = target[used], origin[used]
        counts = np.bincount(target, minlength=len(self.new))
        size = (len(self.new), len(self.new))
        mean: csr_array[Any] = csr_array((1 / counts[target], (target, origin)), shape=size)
        self.weights = csr_array(self.weights + mean @ self.weights)

    @cached_property
    def _common_edges(self) -> tuple[IntArray, IntArray]:
        """The indices of the edges that both taxonomies have, in the old one and in the new one."""
        old = self.old.edge_array @ [len(self.old), 1]
        child, parent = (self.source[ends] for ends in self.new.edge_array.T)
        new = np.where((child >= 0) & (parent >= 0), child * len(self.old) + parent, -1)
        _, in_old, in_new = np.intersect1d(old, new, return_indices=True)
        return in_old, in_new

    def convert(self, old: Tensor, new: Tensor, axes: Sequence[Axis]) -> Tensor | None:
        """The old weight in the shape of the new one, or None if that is not possible; for `axes` see `HTCModel`."""
        if set(axes) - {Axis.FIXED} and not len(self.copied):
            return None
        for place, axis in enumerate(axes):
            if axis is not Axis.FIXED:
                old = self._convert_axis(axis, old.movedim(place, 0), new.movedim(place, 0)).movedim(0, place)
        return old if old.shape == new.shape else None

    def _convert_axis(self, axis: Axis, old: Tensor, new: Tensor) -> Tensor:
        """Convert the first axis of a weight."""
        if axis in (Axis.EDGE, Axis.DISTANCE):
            in_old, in_new = self._common_edges if axis is Axis.EDGE else (np.arange(min(len(old), len(new))),) * 2
            return _with_rows(new, in_new, old[in_old]) if old.shape[1:] == new.shape[1:] else old
        width = len(old) // len(self.old)
        rows = old.reshape(len(self.old), width, *old.shape[1:]) if width > 1 else old
        if axis is Axis.FRESH_LABEL:
            copied = rows[self.source[self.copied]]
            return _with_rows(new, self.copied, copied) if rows.shape[1:] == new.shape[1:] else old
        result = rows.new_zeros(len(self.new), *rows.shape[1:])
        result[self.copied] = rows[self.source[self.copied]]
        started = np.append(self.from_relatives, self.from_others)
        if axis is Axis.LABEL and len(started):
            means = self.weights[started].astype(np.float32) @ rows.flatten(1 if rows.dim() > 1 else 0).cpu().numpy()
            result[started] = torch.from_numpy(means).to(result).reshape(result[started].shape)
        return result.flatten(0, 1) if width > 1 else result


def _with_rows(weight: Tensor, indices: IntArray, rows: Tensor) -> Tensor:
    """A copy of the weight in which these rows are replaced."""
    return weight.index_copy(0, torch.from_numpy(indices).to(weight.device), rows)
