"""Models that can see the coding tree, each beside the same model on a tree with permuted leaves.

HILL as published is the same learner on every tree of the same unlabelled shape (docs/theory.md). The designs below are
not: their leaves start from the names of the labels, so a node stands for known labels. All of them have the text
encoder, the classifier on the text vector, names and loss of the preset auto, without its linear model; `control` is
that and nothing else, the others add one part:

    leaves     a contrastive loss between a document and the names of its labels, which needs no tree
    nodes      the same between a document and the nodes of its labels, on every level of the coding tree
    path       a logit per node, which is added to those of the labels below and learned with a loss of its own
    attention  label-wise attention over the tokens of a document, with queries that start from the names
    described  names and descriptions of labels as further training documents (data.descriptions), which needs no tree

A trial is a design, a data set, a seed and settings. `--trials search` tries the same number of settings for each
design on dev; `--trials FILE` runs the designs and settings of a JSON file, such as the best ones, and reads test. Run
it as `python experiments/hierarchy_aware.py --data DIR --sets wos attack --trials search --seeds 1 --out FILE.jsonl`.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hill.classifier import HillClassifier
from hill.data import Documents, read_data
from hill.encoders.packed import layer_weights, packed_states, prepared_weights
from hill.models import MODELS
from hill.models.base import ModelConfig, total
from hill.models.hill import HILL, NEUTRAL_COSINE, TREE_FILE, HILLConfig
from hill.models.layers import initialise
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.types import AnyBatch, Output, Packed

KEPT = ("micro_f1", "macro_f1", "hierarchical_f1")

# The designs


@dataclass(frozen=True)
class DesignConfig(HILLConfig):
    """Settings of the designs."""

    weight: float = 0.3
    """Weight of the loss that the design adds."""
    sharpness: float = 10.0
    """What cosines are multiplied with: the inverse temperature of a contrast, or the start of an attention."""
    shuffle: int = 0
    """Permute the leaves of the coding tree with this seed; 0: do not. A trial with 1 uses the seed of its run."""


class Design(HILL):
    """The control, with the members of each node of the coding tree for its subclasses."""

    Config: ClassVar[type[ModelConfig]] = DesignConfig
    config: DesignConfig

    def __init__(self, text: Any, taxonomy: Taxonomy, config: DesignConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        ancestor = np.arange(len(taxonomy))
        self.heights = range(1, self.tree.height)
        for height, parents in zip(self.heights, self.tree.parents, strict=False):
            ancestor = parents[ancestor]
            members = F.one_hot(torch.from_numpy(ancestor.copy())).T.float()
            self.register_buffer(f"members{height}", members, persistent=False)

    @classmethod
    def prepare(cls, documents: Documents, taxonomy: Taxonomy, config: Any, tokenizer: Any) -> dict[str, Any]:
        """The assets of HILL, with permuted leaves if that is asked for."""
        assets = super().prepare(documents, taxonomy, config, tokenizer)
        if config.shuffle:
            leaves, *above = assets[TREE_FILE]["parents"]
            leaves = np.random.default_rng(config.shuffle).permutation(leaves).tolist()
            assets[TREE_FILE] = {"parents": [leaves, *above]}
        return assets

    def members(self) -> Iterator[Tensor]:
        """The labels below each node (N, L), for the levels between leaves and root."""
        for height in self.heights:
            yield self.get_buffer(f"members{height}")

    def node_vectors(self, members: Tensor) -> Tensor:
        """The mean of the names below each node, of length 1: (N, D)."""
        assert self.names is not None
        return F.normalize(members @ F.normalize(self.names.vectors, dim=1), dim=1)

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Text vectors (B, D) to logits (B, L), with the losses if labels are given."""
        output = super().classify(text, labels)
        if labels is None or output.loss is None:
            return output
        own = self.own_loss(text, labels.float())
        return output if own is None else total(output.logits, output.parts | {"own": self.config.weight * own})

    def own_loss(self, text: Tensor, labels: Tensor) -> Tensor | None:
        """The loss that a design adds."""
        return None

    def contrast_with(self, vectors: Tensor, text: Tensor, targets: Tensor) -> Tensor:
        """Minus the mean log share of the vectors (N, D) that belong to a document, by softmax of scaled cosines."""
        shares = (self.config.sharpness * (F.normalize(text, dim=1) @ vectors.T)).log_softmax(dim=1)
        return -((shares * targets).sum(dim=1) / targets.sum(dim=1).clamp(min=1)).mean()


class Leaves(Design):
    """Contrast with the names of the labels."""

    def own_loss(self, text: Tensor, labels: Tensor) -> Tensor:
        """The contrast with the leaves."""
        assert self.names is not None
        return self.contrast_with(F.normalize(self.names.vectors, dim=1), text, labels)


class Nodes(Design):
    """Contrast with the nodes above the labels, on every level."""

    def own_loss(self, text: Tensor, labels: Tensor) -> Tensor:
        """The sum over levels of the contrast with their nodes."""
        losses = [
            self.contrast_with(self.node_vectors(members), text, (labels @ members.T > 0).float())
            for members in self.members()
        ]
        return torch.stack(losses).sum()


class PathLogits(Design):
    """A logit per node, started from names: labels below get its log probability, and it is learned by a loss."""

    def __init__(self, text: Any, taxonomy: Taxonomy, config: DesignConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.head_nodes = nn.ModuleList(nn.Linear(text.width, len(members)) for members in self.members())
        initialise(self.head_nodes)

    def node_logits(self, text: Tensor) -> list[Tensor]:
        """The logits of the nodes of each level: (B, N) each."""
        unit = F.normalize(text, dim=1)
        return [
            head(text) + self.config.name_weight * (unit @ self.node_vectors(members).T - NEUTRAL_COSINE)
            for head, members in zip(self.head_nodes, self.members(), strict=True)
        ]

    def classify(self, text: Tensor, labels: Tensor | None = None) -> Output:
        """Logits of labels plus the log probabilities of the nodes above them."""
        levels = self.node_logits(text)
        output = super(Design, self).classify(text, None)
        above = [F.logsigmoid(level) @ members for level, members in zip(levels, self.members(), strict=True)]
        logits = output.logits + torch.stack(above).sum(dim=0)
        if labels is None:
            return Output(logits)
        losses = [
            self.label_loss(level, (labels.float() @ members.T > 0).float())
            for level, members in zip(levels, self.members(), strict=True)
        ]
        return total(
            logits, {"labels": self.label_loss(logits, labels), "own": self.config.weight * torch.stack(losses).sum()}
        )


class Attention(Design):
    """Label-wise attention: label l pools the token states by softmax of its query, and reads them with its row.

    The logit only needs Σ_t a_tl (w_l · h_t), so tokens × labels numbers are computed, not labels × width vectors.
    """

    def __init__(self, text: Any, taxonomy: Taxonomy, config: DesignConfig, assets: Mapping[str, Any]) -> None:
        super().__init__(text, taxonomy, config, assets)
        self.queries = nn.Parameter(torch.zeros(len(taxonomy), text.width))
        self.head_values = nn.Linear(text.width, len(taxonomy), bias=False)
        initialise(self.head_values)

    def start(self) -> None:
        """Start the queries from the names."""
        super().start()
        assert self.names is not None
        self.queries.data.copy_(self.config.sharpness * F.normalize(self.names.vectors.data, dim=1))

    def forward(self, batch: AnyBatch) -> Output:
        """The logits of the control plus those of the attention."""
        assert isinstance(batch, Packed)
        kind = batch.ids.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        encoder: Any = self.text
        with torch.autocast(kind, enabled=False):
            weights = prepared_weights() or layer_weights(encoder.encoder, dtype)
            states = packed_states(encoder.encoder, batch, weights)
            text = encoder.dropout(encoder._pool_packed(states, batch))
            output = super(Design, self).classify(text, None)
            logits = output.logits + self.attended(encoder.dropout(states.float()), batch)
            if batch.labels is None:
                return Output(logits)
            return total(logits, {"labels": self.label_loss(logits, batch.labels)})

    def attended(self, states: Tensor, batch: Packed) -> Tensor:
        """Token states (P, D) to what the attention adds to the logits (B, L)."""
        documents = torch.arange(batch.count, device=states.device)
        inside = (documents[:, None] == batch.document).float()  # (B, P)
        scores = F.normalize(states, dim=1) @ self.queries.T  # (P, L)
        weights = (scores - scores.amax(dim=0, keepdim=True).detach()).exp()
        sums: Tensor = inside @ (weights * self.head_values(states))
        return sums / (inside @ weights).clamp(min=1e-20)


DESIGNS: dict[str, type[HILL]] = {
    "control": Design,
    "described": Design,
    "leaves": Leaves,
    "nodes": Nodes,
    "path": PathLogits,
    "attention": Attention,
}
MODELS |= {f"design-{name}": design for name, design in DESIGNS.items()}

# The trials

Settings = dict[str, dict[str, Any]]


def settings(**values: Any) -> Settings:
    """Settings by group from names such as model__weight."""
    found: Settings = {}
    for name, value in values.items():
        group, _, key = name.partition("__")
        found.setdefault(group, {})[key] = value
    return found


SEARCH: dict[str, list[Settings]] = {
    "control": [
        settings(),
        settings(model__name_weight=20.0),
        settings(train__encoder_lr=3e-4),
        settings(train__classifier_lr=1e-2),
    ],
    "leaves": [
        settings(model__weight=weight, model__sharpness=sharpness)
        for weight, sharpness in product((0.1, 1.0), (10.0, 20.0))
    ],
    "nodes": [
        settings(model__weight=weight, model__sharpness=sharpness)
        for weight, sharpness in product((0.1, 1.0), (10.0, 20.0))
    ],
    "path": [settings(model__weight=weight, model__height=height) for weight, height in product((0.3, 1.0), (2, 3))],
    "attention": [
        settings(model__sharpness=sharpness, train__lr=rate) for sharpness, rate in product((5.0, 15.0), (1e-3, 3e-3))
    ],
    "described": [settings(), settings(train__classifier_lr=1e-2)],
}
"""The settings that are tried on dev: as many for each design as for the control, but fewer for `described`."""


def carry_out(
    data: Path, design: str, own: Settings, seed: int, documents: int, reads_test: bool, encoder: str
) -> dict[str, Any]:
    """Train once and measure on dev, and on test if asked for; thresholds are tuned on dev."""
    torch.set_num_threads(1)
    taxonomy = read_taxonomy(next(data.glob("taxonomy.*")))
    splits = read_data(data, taxonomy)
    if documents:
        chosen = np.random.default_rng(seed).permutation(len(splits["train"]))[:documents]
        splits["train"] = splits["train"].take(np.sort(chosen))
    given: Settings = {group: dict(own.get(group, {})) for group in ("model", "train", "data", "decode")}
    given["model"] = {"encoder": encoder, "height": 2, "method": "refined"} | given["model"]
    given["model"]["shuffle"] = seed * bool(given["model"].get("shuffle"))
    given["data"] = {"descriptions": design == "described"} | given["data"]
    given["train"] = {"seed": seed, "checkpoint_seconds": 1e9, "ensemble": False, "evaluations": 2} | given["train"]
    classifier = HillClassifier(taxonomy, f"design-{design}", given)
    start = time.perf_counter()
    with TemporaryDirectory() as scratch:
        for _ in classifier.training({name: splits[name] for name in ("train", "dev")}, Path(scratch)):
            pass
    result: dict[str, Any] = {"seconds": round(time.perf_counter() - start, 1), "train": len(splits["train"])}
    for split in ("dev", "test") if reads_test else ("dev",):
        metrics = classifier.metrics if split == "dev" else classifier.evaluate(splits["test"], include_seen=True)
        result[split] = {name: round(float(metrics[name]), 5) for name in KEPT}
    return result


def main() -> None:
    """Run the trials that are missing, several at a time, the largest data sets first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--sets", nargs="+", default=["wos", "attack"])
    parser.add_argument("--trials", default="search", help="search, or a JSON file of [design, settings] pairs")
    parser.add_argument("--designs", nargs="+", choices=DESIGNS, default=list(DESIGNS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--documents", type=int, default=0, help="training documents, drawn by the seed; 0 for all")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    searches = given.trials == "search"
    pairs = [(design, own) for design in given.designs for own in SEARCH[design]]
    if not searches:
        pairs = [tuple(pair) for pair in json.loads(Path(given.trials).read_text(encoding="utf-8"))]
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    done = {json.dumps(json.loads(line)["trial"], sort_keys=True) for line in lines}
    jobs = {}
    for seed, name, (design, own) in product(given.seeds, given.sets, pairs):
        trial = {"data": name, "design": design, "settings": own, "seed": seed, "documents": given.documents}
        if (key := json.dumps(trial, sort_keys=True)) not in done:
            jobs[key] = trial
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        futures = {
            pool.submit(
                carry_out, given.data / job["data"], job["design"], job["settings"], job["seed"], job["documents"],
                not searches, given.encoder,
            ): job
            for job in jobs.values()
        }  # fmt: skip
        for future in as_completed(futures):
            job = futures[future]
            if error := future.exception():  # one that fails does not stop the others
                print(job, f"{type(error).__name__}: {error}", flush=True)
                continue
            result = {"trial": job, "encoder": Path(given.encoder).name, **future.result()}
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            scores = " / ".join(f"{100 * result['dev'][name]:.2f}" for name in KEPT[:2])
            print(
                job["data"], job["design"], job["settings"], job["seed"], scores, f"{result['seconds']} s", flush=True
            )


if __name__ == "__main__":
    main()
