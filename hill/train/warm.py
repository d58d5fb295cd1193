"""Warm start: a model for a changed taxonomy that begins with what a model of the old one has learned."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from hill.data import Documents
from hill.errors import ConfigError
from hill.guard import check_model, read_object
from hill.models import MODELS, HTCModel, ModelConfig
from hill.models.hill import TREE_FILE
from hill.models.text import copy_text
from hill.settings import Groups
from hill.taxonomy import Taxonomy
from hill.taxonomy.diff import diff
from hill.train.carry import Plan
from hill.train.store import Stored, settings_now
from hill.types import IntArray


@dataclass(frozen=True)
class Warmed:
    """Where the labels of the new taxonomy (rows) and the weights (names) of a model started from."""

    copied: IntArray
    """Labels that the old model knew."""
    from_parents: IntArray
    """New labels that start as the mean of their parents."""
    from_others: IntArray
    """New roots that start as the mean of labels that the old model knew: their children, else roots, else all."""
    fresh: IntArray
    """Labels that start as in a new model: all, where the old model knew none of them."""
    fresh_weights: tuple[str, ...]
    """Weights that the old model does not have, or in another size."""

    def __str__(self) -> str:
        started = len(self.from_parents) + len(self.from_others)
        return f"{len(self.copied):,} labels copied, {started:,} from labels near them, {len(self.fresh):,} afresh"


def warm_settings(folder: Path, settings: Groups) -> tuple[str, Groups]:
    """The name of a saved model, and these settings with its own of model and length where they say nothing.

    A training with these settings starts from that model.
    """
    check_model(folder)
    saved = read_object(folder / "config.json")
    model = settings_now(saved["settings"], folder)["model"] | settings.get("model", {})
    data = {"max_length": saved["settings"]["data"]["max_length"]} | settings.get("data", {})
    train = settings.get("train", {}) | {"warm_start": str(folder)}
    return saved["model"], {**settings, "model": model, "train": train, "data": data}


def build_warm(
    old: Stored, documents: Documents, taxonomy: Taxonomy, config: ModelConfig
) -> tuple[HTCModel, Tokenizer, Warmed]:
    """A model with the kind, encoder and tokenizer of an old one, for another taxonomy and other documents."""
    _check_open(old)
    _check_config(config, old)
    kind = MODELS[old.name]
    text = copy_text(old.model.text, config, old.tokenizer)
    assets = kind.prepare(documents, taxonomy, config, old.tokenizer)
    model = kind(text, taxonomy, config, assets | _old_tree(old, taxonomy, config))
    model.start()
    return model, old.tokenizer, warm_start(model, old, taxonomy)


@torch.no_grad()
def warm_start(model: HTCModel, old: Stored, taxonomy: Taxonomy) -> Warmed:
    """Set the weights of a new model for this taxonomy from those of an old one, label by label where they follow it.

    A label is the same if it has the same id, or another id and the same name and parents. For the same taxonomy the
    scores are those of the old model. Counts of steps begin anew: a state dict holds copies of them.
    """
    _check_open(old)
    _check_kind(model, old)
    found = diff(old.taxonomy, taxonomy)
    plan, before, fresh = Plan(found), old.model.state_dict(), []
    for name, weight in model.state_dict().items():
        value = None
        axes = model.axes.get(name)
        if name in before and old.model.axes.get(name) == axes:
            value = plan.carry(before[name].to(weight.device), weight, axes or "-" * weight.dim())
        if value is None:
            fresh.append(name)
        else:
            weight.copy_(value)
    return Warmed(plan.copied, plan.from_parents, plan.from_others, plan.fresh, tuple(fresh))


def _old_tree(old: Stored, taxonomy: Taxonomy, config: Any) -> dict[str, Any]:
    """The coding tree of the old model, if this one would have the same but for the order of labels; else nothing.

    Most builders depend on the order of the labels: without this, a new order would be a new tree.
    """
    found, before = diff(old.taxonomy, taxonomy), old.model.config
    same = all(getattr(config, name, None) == getattr(before, name, None) for name in ("structure", "height", "method"))
    if not same or TREE_FILE not in old.model.assets or any(map(len, (found.added, found.removed, found.moved))):
        return {}
    leaves, *above = old.model.assets[TREE_FILE]["parents"]
    source = found.pairs[np.argsort(found.pairs[:, 1]), 0]
    return {TREE_FILE: {"parents": [np.asarray(leaves)[source].tolist(), *above]}}


def _check_open(old: Stored) -> None:
    if old.model.closed:
        raise ConfigError(f"model '{old.name}' is fitted at once and cannot be started from another; train it anew")


def _check_config(config: ModelConfig, old: Stored) -> None:
    before = old.model.config
    if type(config) is not type(before):
        raise ConfigError(f"the model to start from is a '{old.name}'; use --model {old.name}")
    for name in ("text", "encoder") if config.text == "transformer" else ("text",):
        now, then = getattr(config, name), getattr(before, name)
        if now != then:
            raise ConfigError(
                f"model.{name} is '{now}', but the model to start from has '{then}'; set it to that, or train anew"
            )


def _check_kind(model: HTCModel, old: Stored) -> None:
    if type(model) is not type(old.model):
        raise ConfigError(
            f"a model of type {type(model).__name__} cannot start from a '{old.name}'; use --model {old.name}"
        )
    now, before = (
        {name: tuple(weight.shape) for name, weight in each.text.state_dict().items()} for each in (model, old.model)
    )
    for name in sorted(now.keys() | before.keys()):
        if now.get(name) != before.get(name):
            raise ConfigError(
                f"the text encoder is another than that of the old model: '{name}' is {now.get(name)} and was "
                f"{before.get(name)}; start from a model with the same encoder and vocabulary"
            )
