"""Export to ONNX: one graph from token ids to scores, with all that predicting needs beside it."""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from hill.classifier import HillClassifier
from hill.errors import ConfigError, HillError
from hill.export.fixed import Scores, any_batch
from hill.export.folder import FORMAT, GRAPH, VERSION, check_place, write_export
from hill.export.plain import plain_rule
from hill.export.runtime import start_session
from hill.extras import need
from hill.nn import Transformer
from hill.settings import document
from hill.taxonomy.nested import taxonomy_document
from hill.train.store import Stored

OPSET = 20
TOLERANCE = 1e-4
"""How far a score of the graph may be from the model's."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""Where a node of the graph says which parts of the model it comes from."""
PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")
"""Says that the graph is fit to be quantised; else the quantiser warns that it would like it optimised first."""


def export_onnx(classifier: HillClassifier, folder: str | os.PathLike[str], int8: bool = True) -> None:
    """Write a trained classifier to a folder that `OnnxClassifier` reads; with `int8`, its encoder in 8-bit integers.

    The graph is compared with the model before it is written. A model that has no graph is a `HillError` that says so.
    """
    folder, stored = Path(folder), classifier.stored
    check_place(folder)
    if not isinstance(stored.model.text, Transformer):
        kind = type(stored.model.text).__name__
        raise HillError(
            f"model '{stored.name}' reads texts with a {kind}; only models on a transformer can be exported"
        )
    with TemporaryDirectory() as scratch:
        graph = Path(scratch) / GRAPH
        with _explaining(stored.name):
            scores = Scores(stored.model)
            _trace(scores, stored, graph)
            _compare(scores, stored, graph)
        if int8:
            _quantise(graph)
        write_export(folder, graph, _documents(classifier, stored, int8))


def _documents(classifier: HillClassifier, stored: Stored, int8: bool) -> dict[str, Any]:
    config = {
        "format": FORMAT,
        "version": VERSION,
        "model": stored.name,
        "int8": int8,
        "max_length": classifier.max_length,
        "pad": stored.model.text.pad,
        "decode": document(classifier.decode_config),
        "plain": plain_rule(classifier),
        "windows": document(classifier.windows),
    }
    return {
        "config.json": config,
        "taxonomy.json": taxonomy_document(stored.taxonomy),
        "tokenizer.json": json.loads(stored.tokenizer.to_str()),
        "thresholds.json": classifier.thresholds_document(),
        "metrics.json": classifier.metrics,
    }


@contextmanager
def _explaining(name: str) -> Iterator[None]:
    """Whatever stops the exporter becomes an error that says so."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = str(error.__cause__ or error).strip().split("\n")[0][:200]
        raise HillError(f"model '{name}' cannot be exported to ONNX: {reason}") from None


def _trace(scores: Scores, stored: Stored, graph: Path) -> None:
    need("onnxscript", "onnx", "export")
    sizes = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    with torch.inference_mode(), _quiet(), any_batch():
        program = torch.onnx.export(
            scores,
            _batch(stored, documents=3, length=7),
            dynamo=True,
            dynamic_shapes={"ids": sizes, "mask": sizes},
            input_names=["ids", "mask"],
            output_names=["scores"],
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        program.save(graph)


@torch.inference_mode()
def _compare(scores: Scores, stored: Stored, graph: Path) -> None:
    """Raise unless the graph gives the model's scores, for batches of other sizes than it was traced with."""
    session = start_session(graph)
    for documents, length in ((1, 4), (5, min(16, stored.model.text.longest))):
        ids, mask = _batch(stored, documents, length)
        found = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})[0]
        apart = (torch.from_numpy(found) - scores(ids, mask)).abs().max().item()
        if not apart <= TOLERANCE:
            raise HillError(f"scores of its graph are {apart:.1g} off")


def _batch(stored: Stored, documents: int, length: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask (B, T) of documents of different lengths."""
    words = stored.tokenizer.get_vocab_size()
    ids = torch.randint(words, (documents, length), generator=torch.Generator().manual_seed(0))
    lengths = length - torch.arange(documents) % length
    return ids, (torch.arange(length) < lengths[:, None]).long()


def _quantise(graph: Path) -> None:
    """Weights of the encoder become 8-bit integers, with a scale a column; what they multiply too, as it comes.

    The encoder is where the time goes. With one scale a matrix, macro F1 on arXiv fell by 2.7 points.
    """
    onnx = need("onnx", "onnx", "export")
    quantization = need("onnxruntime.quantization", "onnx", "export")
    model = onnx.load(graph)
    del model.graph.value_info[:]  # shapes that the exporter's own fusions made wrong
    onnx.helper.set_model_props(model, dict([PREPARED]))
    encoder = [node.name for node in model.graph.node if any(_of_encoder(entry) for entry in node.metadata_props)]
    quantization.quantize_dynamic(
        model, graph, ["MatMul"], per_channel=True, weight_type=quantization.QuantType.QInt8, nodes_to_quantize=encoder
    )


def _of_encoder(entry: Any) -> bool:
    return entry.key == SCOPES and "'model.text'" in entry.value


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings and log lines of the exporter about its own insides."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
