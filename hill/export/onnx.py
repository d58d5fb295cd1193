"""Export to ONNX: one graph from token ids to scores, the files that prediction needs, and a rule for decoding."""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hill.data.seen import SEEN_FILE, seen_document
from hill.encoders import Transformer
from hill.errors import ConfigError, HillError, need
from hill.export.runtime import (
    ENSEMBLE_VERSION,
    GRAPH,
    MIXTURE,
    ONNX_FORMAT,
    ONNX_VERSION,
    WORDS,
    WORDS_TOKENIZER,
    WORDS_WEIGHTS,
    is_export,
    start_session,
)
from hill.io import save_folder, write_json
from hill.models import HTCModel
from hill.models.inference import SavedModel
from hill.predictor import Predictor
from hill.settings import to_dict
from hill.types import Batch

if TYPE_CHECKING:  # exporting needs no training
    from hill.classifier import HillClassifier

TOLERANCE = 1e-4
"""Maximum difference between the scores of graph and model."""


def export_onnx(classifier: HillClassifier, folder: str | os.PathLike[str], int8: bool = True) -> None:
    """Export a trained classifier to a folder for `OnnxClassifier`; with `int8`, quantise its encoder to 8 bits.

    Before the folder is written, the scores of the graph are compared with those of the model. Linear members of an
    ensemble are exported, too. If it has others, only the model itself is exported, with the decoding that was tuned
    for it alone. Raises a `HillError` if the model cannot be exported.
    """
    folder, stored = Path(folder), classifier.stored
    members = exportable_members(classifier)
    decoding = classifier.own_decoding if classifier.members and not members else classifier.thresholds_document()
    if folder.exists() and not (folder.is_dir() and (is_export(folder) or not any(folder.iterdir()))):
        raise ConfigError(f"'{folder}' exists and is not an exported model; choose another folder for the export")
    if not isinstance(encoder := stored.model.text, Transformer):
        reason = f"has the text encoder {type(encoder).__name__}; only models with a transformer can be exported"
        raise HillError(f"model '{stored.name}' {reason}")
    documents = {
        "config.json": {
            "format": ONNX_FORMAT,
            "version": ENSEMBLE_VERSION if members else ONNX_VERSION,
            "model": stored.name,
            "int8": int8,
            "max_length": classifier.max_length,
            "pad": encoder.pad,
            "decode": to_dict(classifier.decode_config),
            "plain": plain_rule(classifier) if classifier.mixture is None else None,
            "windows": {"most": classifier.data_config.windows},
        },
        "taxonomy.json": stored.taxonomy.to_dict(),
        "tokenizer.json": json.loads(stored.tokenizer.to_str()),
        "thresholds.json": decoding,
        "metrics.json": classifier.metrics,
    }
    if classifier.seen is not None:
        documents[SEEN_FILE] = seen_document(classifier.seen)
    if members and classifier.mixture is not None:
        documents[MIXTURE] = {"mixture": classifier.mixture.to_dict()}
    with TemporaryDirectory() as scratch:
        graph = Path(scratch) / GRAPH
        try:
            module = ScoringModule(stored.model)
            _trace(module, stored, graph)
            _compare(module, stored, graph)
        except ConfigError:
            raise
        except Exception as error:  # the exporter raises errors of any kind
            reason = str(error.__cause__ or error).strip().split("\n")[0][:200]
            raise HillError(f"model '{stored.name}' cannot be exported to ONNX: {reason}") from None
        if int8:
            _quantise(graph)
        with save_folder(folder) as draft:
            shutil.copyfile(graph, draft / GRAPH)
            for name, document in documents.items():
                write_json(draft / name, document)
            for number, (member, facts, arrays) in enumerate(members, start=1):
                own = draft / f"member-{number}"
                own.mkdir()
                write_json(own / WORDS, facts | {"max_length": member.max_length})
                write_json(own / WORDS_TOKENIZER, json.loads(member.stored.tokenizer.to_str()))
                save_file(arrays, own / WORDS_WEIGHTS)


def exportable_members(classifier: HillClassifier) -> list[tuple[HillClassifier, dict[str, Any], dict[str, Any]]]:
    """The members of an ensemble with the parts to export; empty if there is one that cannot be exported."""
    found = [(member, *parts) for member in classifier.members if (parts := member.stored.model.words_parts())]
    return found if len(found) == len(classifier.members) else []


def _trace(module: ScoringModule, stored: SavedModel, graph: Path) -> None:
    need("onnxscript", "onnx", "export")
    sizes = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    with torch.inference_mode(), _quiet():
        program = torch.onnx.export(
            module,
            _batch(stored, documents=3, length=7),
            dynamo=True,
            dynamic_shapes={"ids": sizes, "mask": sizes},
            input_names=["ids", "mask"],
            output_names=["scores"],
            opset_version=20,
            verbose=False,
        )
        assert program is not None
        program.save(graph)


@torch.inference_mode()
def _compare(module: ScoringModule, stored: SavedModel, graph: Path) -> None:
    """Raise if the scores of graph and model differ, for batches of other sizes than the traced one."""
    session = start_session(graph)
    for documents, length in ((1, 4), (5, min(16, stored.model.text.longest))):
        ids, mask = _batch(stored, documents, length)
        graph_scores = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})[0]
        difference = (torch.from_numpy(graph_scores) - module(ids, mask)).abs().max().item()
        if not difference <= TOLERANCE:
            raise HillError(f"the scores of its graph differ by {difference:.1g}; expected at most {TOLERANCE:g}")


def _batch(stored: SavedModel, documents: int, length: int) -> tuple[Tensor, Tensor]:
    """Return random token ids and the mask (B, T) of documents of different lengths."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(stored.tokenizer.get_vocab_size(), (documents, length), generator=generator)
    lengths = length - torch.arange(documents) % length
    return ids, (torch.arange(length) < lengths[:, None]).long()


def _quantise(graph: Path) -> None:
    """Quantise the weights of the encoder to 8-bit integers with one scale per column, activations dynamically.

    The encoder takes most of the time. With one scale per matrix, macro F1 on arXiv decreased by 2.7 points.
    """
    onnx = need("onnx", "onnx", "export")
    quantization = need("onnxruntime.quantization", "onnx", "export")
    model = onnx.load(graph)
    del model.graph.value_info[:]  # the exporter's fusions leave wrong shapes
    # marks the graph as ready to be quantised; otherwise the quantiser warns
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    scopes = "pkg.torch.onnx.name_scopes"  # metadata of a node: the modules it comes from
    encoder = [
        node.name
        for node in model.graph.node
        if any(entry.key == scopes and "'model.text'" in entry.value for entry in node.metadata_props)
    ]
    quantization.quantize_dynamic(
        model, graph, ["MatMul"], per_channel=True, weight_type=quantization.QuantType.QInt8, nodes_to_quantize=encoder
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings and log messages of the exporter."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


class ScoringModule(nn.Module):
    """A copy of a model on the CPU that maps token ids and mask (B, T) to scores (B, L)."""

    def __init__(self, model: HTCModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).float().cpu().eval()
        if isinstance(self.model.text, Transformer):  # use matrix products, which ONNX Runtime optimises
            self.model.text.encoder.set_attn_implementation("eager")  # type: ignore[operator]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, T) and (B, T) to (B, L)."""
        with ReplaceOperators():
            return self.model.scores(self.model(Batch(ids, mask)).logits)


class ReplaceOperators(TorchFunctionMode):
    """Replaces an operator that ONNX lacks and one that ONNX Runtime computes wrongly."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called instead of every function of torch."""
        replacements: dict[Any, Any] = {torch.searchsorted: searchsorted, Tensor.index_add: index_add}
        return replacements.get(func, func)(*args, **(kwargs or {}))


def searchsorted(boundaries: Tensor, values: Tensor) -> Tensor:
    """`torch.searchsorted(boundaries, values)` as a binary search, which ONNX lacks."""
    steps = len(boundaries).bit_length()
    padded = F.pad(boundaries, (0, 2**steps - 1 - len(boundaries)), value=torch.inf)
    index = torch.zeros_like(values, dtype=torch.int64)
    for step in reversed(range(steps)):
        right = index + 2**step
        index = torch.where(padded[right - 1] < values, right, index)
    return index


def index_add(sums: Tensor, dim: int, index: Tensor, rows: Tensor) -> Tensor:
    """`sums.index_add(dim, index, rows)` as a product with a matrix of zeros and ones.

    ONNX would use ScatterND, which loses rows if ONNX Runtime runs it in several threads.
    """
    if not len(index):
        return sums
    indicator = torch.arange(sums.shape[dim])[:, None] == index  # (sums, rows)
    moved = rows.movedim(dim, 0)
    added = indicator.to(rows.dtype) @ moved.flatten(1)
    return sums + added.reshape(sums.shape[dim], *moved.shape[1:]).movedim(0, dim)


# Decoding without this package

SPREAD = {"closure": "up", "auto": "up", "ancestors": "up", "top-down": "down", "raw": "off"}
"""`up`: the ancestors of a predicted label are predicted too. `down`: a label needs all its ancestors."""
ONE = int(np.float32(1).view(np.int32))


def plain_rule(predictor: Predictor) -> dict[str, Any] | None:
    """Express decoding as a threshold on the raw score of each label; None if that is not possible.

    The decisions are exactly those of the predictor, since calibration is monotonic per label. If scores are propagated
    along the taxonomy before they are compared, this holds only for a single threshold.
    """
    config, thresholds, strategy = predictor.decode_config, predictor.thresholds, predictor.decode_config.strategy
    if config.abstain or strategy not in SPREAD or (thresholds is not None and strategy not in ("ancestors", "raw")):
        return None
    labels = len(predictor.taxonomy)
    threshold = np.full(labels, config.threshold) if thresholds is None else thresholds
    # Find the highest raw score of each label that is not predicted, by binary search over the bits of the scores as
    # integers, which have the same order; -1 stands for no score.
    decoder, low, high = predictor.decoder(), np.full(labels, -1), np.full(labels, ONE + 1)
    while (high - low > 1).any():
        middle = (low + high) // 2
        scores = np.clip(middle, 0, ONE).astype(np.int32).view(np.float32)
        above = (decoder.calibrated(scores[None])[0] > threshold) | (middle > ONE)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    raw = np.where(low < 0, -1, np.maximum(low, 0).astype(np.int32).view(np.float32))
    return {"spread": SPREAD[strategy], "thresholds": raw.tolist()}
