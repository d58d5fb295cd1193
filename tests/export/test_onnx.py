"""Export to ONNX: the predictions are the same, and damaged files are refused."""

import copy
import json
import logging
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import expit, logit

from hill.bulk import predict_file
from hill.classifier import HillClassifier
from hill.errors import CheckpointError, ConfigError, HillError, need
from hill.export import OnnxClassifier
from hill.export.onnx import (
    TOLERANCE,
    ReplaceOperators,
    ScoringModule,
    _batch,
    _compare,
    _quiet,
    export_onnx,
    plain_rule,
)
from hill.export.runtime import GRAPH, batch_documents, read_export, start_session
from hill.models import hill as hill_model
from hill.types import Batch
from tests.command import hill as run_hill
from tests.conftest import ROOT, animals_taxonomy, toy_documents
from tests.made import make_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TEXTS = toy_documents(50, 9)[0]
BLOCKED = """
import runpy, sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "hill", "transformers"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Wall())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program where neither torch nor this package can be imported."""


def fit(encoder: Path, model: str, settings: dict[str, Any], epochs: int, **decode: str) -> HillClassifier:
    every = {
        "model": {"encoder": str(encoder), "pooling": "mean", **settings},
        "train": {"epochs": epochs, "batch_size": 8, "encoder_lr": 5e-3, "lr": 5e-3, "head_epochs": 2},
        "data": {"max_length": 16},
        "decode": decode,
    }
    return HillClassifier(animals_taxonomy(), model, every, preset=None).fit(*toy_documents(64, 1))


@pytest.fixture(scope="module")
def fitted(tiny_encoder: Path) -> HillClassifier:
    return fit(tiny_encoder, "hill", {"readout_dropout": 0.0}, epochs=8, strategy="top-down", tune="label")


@pytest.fixture(scope="module")
def folder(fitted: HillClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported model in fp32."""
    folder = tmp_path_factory.mktemp("export") / "fp32"
    export_onnx(fitted, folder, int8=False)
    return folder


@pytest.fixture(scope="module")
def folder8(fitted: HillClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported model in int8, as the command makes it."""
    folder = tmp_path_factory.mktemp("export")
    fitted.save(folder / "model")
    command = [sys.executable, "-m", "hill", "export", folder / "model", "--onnx", folder / "int8"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert f"hill predict {folder / 'int8'}" in result.stdout
    return folder / "int8"


def raw(predictor: Any, texts: list[str]) -> np.ndarray[Any, Any]:
    """The scores of all texts, and a check that each text came once."""
    found = np.full((len(texts), len(predictor.taxonomy)), np.nan, dtype=np.float32)
    for documents, scores in predictor.scores(texts):
        assert np.isnan(found[documents]).all() and scores.dtype == np.float32
        found[documents] = scores
    assert not np.isnan(found).any()
    return found


def check_parity(model: Any, folder: Path) -> None:
    session, draw = start_session(folder / GRAPH), np.random.default_rng(0)
    for documents, length in ((1, 1), (1, 9), (2, 30), (7, 3), (33, 12), (64, 64)):
        ids = draw.integers(0, 22, (documents, length))
        mask = (np.arange(length) < draw.integers(1, length + 1, documents)[:, None]).astype(np.int64)
        with torch.inference_mode():
            batch = Batch(torch.from_numpy(ids), torch.from_numpy(mask))
            wanted = model.eval().scores(model(batch).logits).numpy()
        found = session.run(None, {"ids": ids, "mask": mask})[0]
        assert found.shape == wanted.shape and np.abs(found - wanted).max() <= TOLERANCE, (documents, length)
        assert wanted.std() > 1e-3, "scores that are all the same would show nothing"


def test_graph_and_model_give_the_same_scores(fitted: HillClassifier, folder: Path) -> None:
    check_parity(fitted.stored.model, folder)


@pytest.mark.parametrize(
    ("model", "settings", "full_rank"),
    [
        ("hill", {"loss": "softmax", "readout": "max", "height": 2, "pooling": "last"}, 0),
        ("hill", {"leaf_units": 2, "name_weight": 5.0, "readout_dropout": 0.0}, 5_000),
        ("flat", {"loss": "conditional-softmax", "pooling": "cls"}, 5_000),
    ],
    ids=["hill-softmax-low-rank-last", "hill-units-names", "flat-conditional-cls"],
)
def test_graphs_of_other_models_and_losses(
    tiny_encoder: Path,
    tmp_path: Path,
    model: str,
    settings: dict[str, Any],
    full_rank: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hill_model, "FULL_RANK", full_rank)
    monkeypatch.setattr(hill_model, "LOW_RANK", 2)
    trained = fit(tiny_encoder, model, settings, epochs=2)
    level = logging.root.manager.disable
    export_onnx(trained, tmp_path / "export", int8=False)
    assert logging.root.manager.disable == level
    assert json.loads((tmp_path / "export" / "config.json").read_text())["plain"] == plain_rule(trained)
    check_parity(trained.stored.model, tmp_path / "export")


def test_predictions_are_those_of_the_classifier(fitted: HillClassifier, folder: Path, tmp_path: Path) -> None:
    exported = OnnxClassifier.load(folder, threads=2)
    assert np.abs(raw(exported, TEXTS) - raw(fitted, TEXTS)).max() <= TOLERANCE
    assert np.abs(exported.predict_proba(TEXTS) - fitted.predict_proba(TEXTS)).max() <= TOLERANCE
    assert exported.predict(TEXTS) == fitted.predict(TEXTS) and any(exported.predict(TEXTS))
    assert exported.predict_paths(TEXTS) == fitted.predict_paths(TEXTS)
    assert exported.metrics == fitted.metrics and exported.thresholds is not None
    assert exported.seen is not None and np.array_equal(exported.seen, fitted.seen)
    assert exported.decode_note == fitted.decode_note
    long = "wing feather sky beak nest egg " * 400
    assert exported.predict([long]) == fitted.predict([long])
    records = [{"text": t, "labels": labels} for t, labels in zip(*toy_documents(30, 4), strict=True)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found, wanted = (
        {name: value for name, value in each.evaluate(tmp_path).items() if name != "levels"}
        for each in (exported, fitted)
    )
    assert found == pytest.approx(wanted, abs=1e-3) and found["documents"] == 30
    assert predict_file(exported, tmp_path / "test.jsonl", tmp_path / "out.jsonl") == 30


def test_windows_of_long_texts(folder: Path) -> None:
    exported = OnnxClassifier.load(folder)
    halves = ["wing feather sky beak nest egg wing " * 2, "leaf root bark leaf root bark leaf " * 2]
    apart, cut_off = raw(exported, halves), raw(exported, [" ".join(halves)])
    assert exported.max_length == 16 and np.abs(cut_off[0] - apart[0]).max() < 1e-6
    exported.windows = 2
    together = raw(exported, [*halves, " ".join(halves)])
    assert np.abs(together[:2] - apart).max() < 1e-6 and (apart[1] > apart[0] + 0.1).any()
    words = " ".join(halves).split()
    windows = raw(exported, [" ".join(words[:14]), " ".join(words[10:24])])  # 16 tokens, 2 of them special, 4 shared
    assert np.abs(together[2] - expit(logit(windows).mean(axis=0))).max() < 1e-6


def test_an_export_of_an_earlier_version_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = read_export(folder)
    documents["config.json"]["decode"]["support"] = 5  # a setting that was removed
    monkeypatch.setattr("hill.export.runtime.read_export", lambda _: documents)
    older = OnnxClassifier.load(folder)
    monkeypatch.undo()
    assert older.predict(TEXTS) == OnnxClassifier.load(folder).predict(TEXTS)


def test_threads_change_nothing(folder8: Path) -> None:
    texts = toy_documents(700, 3)[0]
    alone, many = (raw(OnnxClassifier.load(folder8, threads), texts) for threads in (1, 3))
    assert np.array_equal(alone, many)


def test_batches_of_one_text_do_not_depend_on_other_texts(folder8: Path) -> None:
    exported = OnnxClassifier.load(folder8, batch_tokens=1)
    together, alone = raw(exported, TEXTS), np.concatenate([raw(exported, [text]) for text in TEXTS])
    assert np.array_equal(together, alone)
    assert not np.array_equal(together, raw(OnnxClassifier.load(folder8), TEXTS))


def test_int8_quantises_only_the_encoder(fitted: HillClassifier, folder: Path, folder8: Path) -> None:
    exact, rounded = raw(fitted, TEXTS), raw(OnnxClassifier.load(folder8), TEXTS)
    assert 0 < np.abs(exact - rounded).max() < 0.1
    graphs = {place: onnx.load(place / GRAPH).graph for place in (folder, folder8)}
    kinds = {place: [node.op_type for node in graph.node] for place, graph in graphs.items()}
    assert kinds[folder8].count("MatMulInteger") == 2 * 6 and "MatMulInteger" not in kinds[folder]
    assert json.loads((folder8 / "config.json").read_text())["int8"]
    weights = {weight.name: weight for weight in graphs[folder8].initializer}
    assert {"model.head.weight", "model.structure.features.0.weight"} <= set(weights)
    scales = [weights[name].dims for node in graphs[folder8].node for name in node.input if name.endswith("_scale")
              if name in weights]  # fmt: skip
    assert len(scales) == 12 and all(list(size) in ([16], [32]) for size in scales), "one scale per column"


def test_the_graph_has_no_scatter(folder: Path) -> None:
    """ScatterND with a reduction loses rows when ONNX Runtime uses several threads (its issue 23396)."""
    assert not [node for node in onnx.load(folder / GRAPH).graph.node if node.op_type == "ScatterND"]


def test_no_torch_is_needed(folder: Path) -> None:
    program = (
        "import sys; from hill.bulk import predict_file; from hill.export import OnnxClassifier; "
        f"print(OnnxClassifier.load({str(folder)!r}).predict(['leaf root bark'])); "
        "sys.exit(any(m.split('.')[0] in ('torch', 'transformers', 'onnx') for m in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0 and "p" in result.stdout, result.stderr


def run_example(folder: Path, *texts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, str(ROOT / "examples" / "predict_onnx.py"), str(folder), *texts]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder.parent)


@pytest.mark.parametrize("strategy", ["ancestors", "top-down", "raw"])
def test_the_example_predicts_without_torch_and_without_hill(
    fitted: HillClassifier, folder: Path, tmp_path: Path, strategy: str
) -> None:
    shutil.copytree(folder, tmp_path / "out")
    result = run_example(tmp_path / "out", "wing")
    assert result.returncode == 1 and "decodes with strategy top-down; use: hill predict" in result.stderr
    other = copy.copy(fitted)
    other.thresholds, other.decode_config = None, replace(fitted.decode_config, strategy=strategy, threshold=0.5)
    config = json.loads((folder / "config.json").read_text()) | {"plain": plain_rule(other)}
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    texts = [*TEXTS, "wing feather sky beak nest egg " * 40]
    result = run_example(tmp_path / "out", *texts)
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["text"] for line in found] == texts
    assert [line["labels"] for line in found] == other.predict(texts)
    assert len({tuple(line["labels"]) for line in found}) > 2


def test_the_import_block_works(tmp_path: Path) -> None:
    (tmp_path / "needs.py").write_text("import torch")
    result = subprocess.run([sys.executable, "-c", BLOCKED, tmp_path / "needs.py"], capture_output=True, text=True)
    assert "torch is not here" in result.stderr


@pytest.mark.parametrize("name", [GRAPH, "taxonomy.json", "tokenizer.json", "thresholds.json", "config.json"])
def test_a_damaged_or_missing_file_is_named(folder8: Path, tmp_path: Path, name: str) -> None:
    for file in folder8.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole.replace(b"e", b"f", 1) if name == GRAPH else whole + b" ")
    with pytest.raises(CheckpointError, match=f"{name}' is damaged"):
        OnnxClassifier.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match="is no exported model" if name == "config.json" else f"lacks '{name}'"):
        OnnxClassifier.load(tmp_path)


def test_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no exported model; create one with: hill export MODEL --onnx"):
        OnnxClassifier.load(tmp_path / "none")
    (tmp_path / "config.json").write_text('{"format": "hill-onnx", "version": 9}')
    with pytest.raises(CheckpointError, match="has version 9; expected 'hill-onnx', version 1"):
        OnnxClassifier.load(tmp_path)
    (tmp_path / "config.json").write_text('{"format": "hill-onnx", "version": 1}')
    with pytest.raises(CheckpointError, match=r"it has no files.json"):
        OnnxClassifier.load(tmp_path)
    (tmp_path / GRAPH).write_bytes(b"no graph")
    with pytest.raises(CheckpointError, match="cannot be run by ONNX Runtime"):
        start_session(tmp_path / GRAPH)


def test_an_export_replaces_only_an_export(fitted: HillClassifier, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("hill.export.onnx._compare", lambda *_: None)
    folder = tmp_path / "mine"
    folder.mkdir()
    for content in (b"first", b"second"):
        monkeypatch.setattr("hill.export.onnx._trace", lambda *given, content=content: given[2].write_bytes(content))
        export_onnx(fitted, folder, int8=False)
        assert (folder / GRAPH).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="mine' exists and is not an exported model; choose another folder"):
        export_onnx(fitted, folder)
    with pytest.raises(CheckpointError, match="cannot write"):
        export_onnx(fitted, folder / GRAPH / "below", int8=False)
    assert (folder / GRAPH).read_bytes() == b"second"


def test_models_that_cannot_be_exported(fitted: HillClassifier, folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match="has not learned anything yet"):
        export_onnx(HillClassifier(animals_taxonomy(), preset=None), tmp_path / "x")
    small = {"model": {"text": "rcnn", "word_width": 4, "gru_width": 4, "filters": 2}, "train": {"epochs": 1}}
    words = HillClassifier(animals_taxonomy(), "textrcnn", small, preset=None).fit(*toy_documents(16, 0))
    with pytest.raises(HillError, match="model 'textrcnn' has the text encoder RCNN; only models with a transformer"):
        export_onnx(words, tmp_path / "x")
    stored, scores = fitted.stored, ScoringModule(fitted.stored.model)
    with torch.no_grad():
        scores.model.get_submodule("head").bias += 0.01
    with pytest.raises(HillError, match=r"scores of its graph differ by 0.0\d+; expected at most 0.0001"):
        _compare(scores, stored, folder / GRAPH)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: 1 / 0)
    with pytest.raises(HillError, match="model 'hill' cannot be exported to ONNX: division by zero"):
        export_onnx(fitted, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_a_missing_extra_names_its_command(
    fitted: HillClassifier, folder: Path, tmp_path: Path, monkeypatch: Any, package: str
) -> None:
    def without(module: str) -> Any:
        if module.split(".")[0] == package:
            raise ImportError
        return need(module, "onnx", "test")

    monkeypatch.setattr("hill.errors.import_module", without)
    with pytest.raises(ConfigError, match=rf"needs {package}, which is not installed; run: pip install 'onnx>="):
        export_onnx(fitted, tmp_path / "x") if package == "onnxscript" else OnnxClassifier.load(folder)


def test_the_command_line(fitted: HillClassifier, folder8: Path, tmp_path: Path) -> None:
    assert json.loads((folder8 / "config.json").read_text())["int8"] is True
    found = json.loads(run_hill("predict", folder8, *TEXTS[:5], "--json").stdout)
    assert [item["labels"] for item in found] == OnnxClassifier.load(folder8).predict(TEXTS[:5])
    records = [{"text": t, "labels": labels} for t, labels in zip(*toy_documents(30, 4), strict=True)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    result = run_hill("evaluate", folder8, tmp_path / "test.jsonl", "--json")
    assert json.loads(result.stdout)["micro_f1"] == pytest.approx(fitted.evaluate(tmp_path)["micro_f1"], abs=0.1)


@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-3, 3, width=16)),
    hnp.arrays(np.float32, (3, 4), elements=st.floats(-3, 3, width=16)),
    st.integers(0, 3),
)
def test_searchsorted_matches_numpy(breaks: Any, values: Any, endless: int) -> None:
    breaks = np.sort(np.concatenate([breaks, np.full(endless, np.inf, dtype=np.float32)]))
    with ReplaceOperators():
        found = torch.searchsorted(torch.from_numpy(breaks), torch.from_numpy(values))
    assert np.array_equal(found.numpy(), np.searchsorted(breaks, values))


@pytest.mark.parametrize(
    ("shape", "dim"), [((5, 3), 0), ((4, 5), 1), ((2, 5, 3), 1), ((2, 5, 3, 4), 1), ((2, 3, 5), 2)]
)
def test_index_add_matches_a_loop(shape: tuple[int, ...], dim: int) -> None:
    rows, index = torch.randn(shape), torch.tensor([1, 0, 1, 3, 1])
    sums = torch.randn([4 if axis == dim else size for axis, size in enumerate(shape)])
    wanted = sums.clone()
    for row, place in enumerate(index.tolist()):
        wanted.select(dim, place).add_(rows.select(dim, row))
    with ReplaceOperators():
        assert torch.allclose(sums.index_add(dim, index, rows), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("hill", {"leaf_units": 2, "name_weight": 5.0}),
        ("flat", {"loss": "conditional-softmax"}),
        ("hitin", {}),
        ("hgclr", {}),
    ],
    ids=["hill", "flat", "hitin", "hgclr"],
)
def test_the_batch_size_is_dynamic(tiny_encoder: Path, model: str, settings: dict[str, Any]) -> None:
    """Otherwise torch.export fails, and the exporter falls back on a method that takes twice the time."""
    sizes = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    stored = make_model(model, settings, tiny_encoder).stored
    with torch.inference_mode(), _quiet():
        torch.export.export(
            ScoringModule(stored.model),
            _batch(stored, 3, 7),
            dynamic_shapes={"ids": sizes, "mask": sizes},
            strict=False,
        )


def test_batches_hold_every_document_once_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 90, 500)
    lengths[7] = 700
    batches = list(batch_documents(lengths, budget=512))
    assert sorted(np.concatenate(batches).tolist()) == list(range(500)) and batches[0].tolist() == [7]
    assert all(len(batch) * lengths[batch].max() <= 512 for batch in batches[1:])
    assert all(len(batch) * lengths[batch].max() > 256 for batch in batches[1:-1])
    assert not list(batch_documents(np.empty(0, dtype=np.int64), budget=512))


def test_the_example_batch_has_different_lengths(fitted: HillClassifier) -> None:
    ids, mask = _batch(fitted.stored, 3, 7)
    assert ids.shape == (3, 7) and mask.sum(dim=1).tolist() == [7, 6, 5] and ids.max() < 22
