"""Losses and gradients that are not finite: training stops and names the step, or skips it."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hill.classifier import HillClassifier
from hill.data.batches import training_order
from hill.errors import CheckpointError, HillError
from hill.io import CHECKSUMS, sha256
from hill.models import MODELS
from hill.train import Epoch, Split, Step
from hill.train.distributed import current_context
from hill.train.trainer import CHECK_INTERVAL, MAX_SKIPPED, NonFiniteGuard, Progress, StepResult
from hill.types import Output
from tests.command import hill
from tests.conftest import animals_taxonomy, toy_documents
from tests.faults import record
from tests.faults.helpers import check_complete, learn, lost, states, tiny
from tests.train.test_distributed import be_rank
from tests.train.test_distributed import start as start_ranks
from tests.train.test_trainer import toy_data

Spoil = Callable[[Output, int], Output]
BAD = 4


def nan_loss(output: Output, call: int) -> Output:
    return replace(output, loss=output.loss * (torch.nan if call == BAD else 1))  # type: ignore[operator]


def infinite_loss(output: Output, call: int) -> Output:
    return replace(output, loss=output.loss + (torch.inf if call == BAD else 0))  # type: ignore[operator]


def infinite_gradient(output: Output, call: int) -> Output:
    """The loss is finite, but its gradient is not."""
    assert output.loss is not None
    zero = output.logits.sum() * 0
    return replace(output, loss=output.loss + (zero.sqrt() * 1 if call == BAD else 0))


def always_nan(output: Output, call: int) -> Output:
    return replace(output, loss=output.loss * torch.nan)  # type: ignore[operator]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Spoil], None]:
    """Changes the loss of the fourth training step, or of other steps."""

    def spoil(how: Spoil) -> None:
        forward, calls = MODELS["hill"].forward, [0]

        def spoiled(model: Any, batch: Any) -> Output:
            output: Output = forward(model, batch)
            calls[0] += output.loss is not None and model.training
            return how(output, calls[0]) if output.loss is not None else output

        monkeypatch.setattr(MODELS["hill"], "forward", spoiled)

    return spoil


def reports(model: HillClassifier, out: Path, resume: bool = False) -> Any:
    return model.training(toy_data(model.taxonomy), out, resume)


@pytest.mark.parametrize("how", [nan_loss, infinite_loss, infinite_gradient])
def test_a_step_that_is_not_finite_stops_the_training(
    tiny_encoder: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, how: Spoil
) -> None:
    with monkeypatch.context():
        spoil(how)
        model = tiny(tiny_encoder)
        steps = model.training(toy_data(model.taxonomy), tmp_path / "out")
        with pytest.raises(HillError, match=r"step 4 is not finite \(loss .*lower train.lr.*skip_nonfinite") as raised:
            list(steps)
    assert model._session
    order = training_order(48, model._session.config.batch_size, model._session.config.seed, 0)
    wanted = ", ".join(str(place) for place in order[BAD - 1].tolist())
    assert f"on the documents {wanted}; " in str(raised.value)
    check_complete(tmp_path / "out")
    assert [state.name for state in states(tmp_path / "out")] == [f"state-{step:08d}-0000" for step in (2, 3)]
    monkeypatch.undo()
    learn(tiny_encoder, tmp_path / "out", resume=True)
    record("loss that is not finite", lost(reference, tmp_path / "out"))


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_changes_nothing(tiny_encoder: Path, tmp_path: Path, spoil: Any, fused: bool) -> None:
    """A fused optimiser skips the step itself."""
    spoil(nan_loss)
    model, found, seen = tiny(tiny_encoder, skip_nonfinite=True, plain=not fused), {}, []
    for report in reports(model, tmp_path / "out"):
        if isinstance(report, Step):
            session = model._session
            assert session
            assert session.optimiser.param_groups[0]["fused"] is fused
            optimiser = session.optimiser.state_dict()["state"]
            moments = {f"{n}.{k}": v for n, values in optimiser.items() for k, v in values.items()}
            found[report.step] = {k: v.clone() for k, v in (session.model.state_dict() | moments).items()}
            seen.append(report.skipped)
        elif isinstance(report, Epoch):
            assert report.metrics["skipped"] == 1
    assert any("running_mean" in name for name in found[BAD]) and any("exp_avg" in name for name in found[BAD])
    assert all(torch.equal(found[BAD][name], value) for name, value in found[BAD - 1].items())
    assert not all(torch.equal(found[BAD][name], found[BAD + 1][name]) for name in found[BAD])
    assert all(value.isfinite().all() for value in found[12].values())
    assert seen == [0] * 3 + [1] * 9
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in log if "step" in line] == [1]
    assert [line["dev"]["skipped"] for line in log if "dev" in line] == [1, 1]
    record("step skipped", 0)


def test_a_stopped_training_continues_without_these_steps(tiny_encoder: Path, tmp_path: Path, spoil: Any) -> None:
    spoil(nan_loss)
    with pytest.raises(HillError, match="step 4 is not finite"):
        list(reports(tiny(tiny_encoder), tmp_path / "out"))
    spoil(lambda output, call: nan_loss(output, BAD if call == 1 else 0))
    steps = [r for r in reports(tiny(tiny_encoder, skip_nonfinite=True), tmp_path / "out", True) if isinstance(r, Step)]
    assert [step.step for step in steps] == list(range(4, 13)) and {step.skipped for step in steps} == {1}


def test_skipping_ends_if_no_step_is_finite(tiny_encoder: Path, tmp_path: Path, spoil: Any) -> None:
    spoil(always_nan)
    model = tiny(tiny_encoder, skip_nonfinite=True, batch_size=2)
    with pytest.raises(HillError, match=f"{MAX_SKIPPED} steps in a row are not finite"):
        list(reports(model, tmp_path / "out"))


def test_weights_that_are_not_finite_are_not_saved(tiny_encoder: Path, tmp_path: Path) -> None:
    model = tiny(tiny_encoder)
    with pytest.raises(HillError, match=r"the weight 'text\..*' is not finite and not saved"):
        for report in reports(model, tmp_path / "out"):
            if isinstance(report, Step) and report.step == 3:
                with torch.no_grad():
                    next(model.stored.model.parameters()).view(-1)[5] = torch.inf
                assert model._session
                model._session.guard.record = lambda *_: None  # type: ignore[method-assign]
    check_complete(tmp_path / "out")
    assert [state.name for state in states(tmp_path / "out")] == [f"state-{step:08d}-0000" for step in (2, 3)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear model with thresholds per label and calibration curves."""
    decode = {"strategy": "closure", "tune": "label", "calibrate": "isotonic"}
    settings: Any = {"decode": decode, "data": {"dev_share": 0.5}}
    model = HillClassifier(animals_taxonomy(), "linear", settings, preset=None).fit(*toy_documents(400, 1))
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save(folder)
    return folder


def changed(saved: Path, folder: Path, name: str, change: Callable[[Any], None]) -> Path:
    """A copy of a saved model with a changed file and matching checksums."""
    shutil.copytree(saved, folder)
    file = folder / name
    if file.suffix == ".json":
        document = json.loads(file.read_text())
        change(document)
        file.write_text(json.dumps(document))
    else:
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
    sums = json.loads((folder / CHECKSUMS).read_text())
    (folder / CHECKSUMS).write_text(json.dumps(sums | {name: sha256(file)}))
    return folder


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_saved_weight_that_is_not_finite_is_refused(saved: Path, tmp_path: Path, value: float) -> None:
    """The checksums match; without the check, predicting ended in an IndexError."""

    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights["bias"][3] = value

    folder = changed(saved, tmp_path / "model", "model.safetensors", spoil)
    with pytest.raises(
        CheckpointError,
        match=r"the weight 'bias' in '.*model.safetensors' has a value that is infinite or not a number",
    ):
        HillClassifier.load(folder)
    ran = hill("predict", folder, "wing")
    assert ran.returncode == 2 and ran.stderr.startswith("hill: the weight 'bias'") and ran.stderr.count("\n") == 1


def test_weights_whose_sum_overflows_are_accepted(saved: Path, tmp_path: Path) -> None:
    def enlarge(weights: dict[str, torch.Tensor]) -> None:
        weights["bias"][:2] = torch.finfo(torch.float32).max

    HillClassifier.load(changed(saved, tmp_path / "model", "model.safetensors", enlarge))


BAD_VALUES: dict[str, tuple[Callable[[Any], None], str]] = {
    "threshold": (lambda found: found.update(threshold=math.nan), "decode.threshold is nan; expected a number from 0"),
    "label": (lambda found: found["labels"].__setitem__(3, math.nan), "the threshold nan for label 'bat'; expected"),
    "infinite": (lambda found: found["labels"].__setitem__(0, math.inf), "the threshold inf for label 'a'; expected"),
    "above 1": (lambda found: found["labels"].__setitem__(0, 1.5), "the threshold 1.5 for label 'a'; expected"),
    "too few": (lambda found: found["labels"].pop(), "no number for each of the 7 labels"),
    "curve": (
        lambda found: found["calibrator"]["levels"][1].__setitem__(2, math.nan),
        "calibration has the number nan",
    ),
    "own curve": (lambda found: found["calibrator"]["labels"][0].__setitem__(2, -math.inf), "has the number -inf"),
    "curves": (
        lambda found: found["calibrator"]["levels"].pop(),
        r"an array of shape \(2, 65\); expected \(3, 65\)",
    ),
    "own curves": (lambda found: found["calibrator"]["labels"].pop(), r"an array of shape .*; expected \("),
    "rows": (lambda found: found["calibrator"]["rows"].__setitem__(0, -1), "a curve for a label beyond the 7 labels"),
    "far rows": (
        lambda found: found["calibrator"]["rows"].__setitem__(0, 7),
        "a curve for a label beyond the 7 labels",
    ),
    "temperature": (
        lambda found: found.update(calibrator={"kind": "temperature", "levels": [1.0, math.nan, 1.0]}),
        "calibration has the number nan",
    ),
    "no temperature": (
        lambda found: found.update(calibrator={"kind": "temperature", "levels": [1.0, 0.0, 1.0]}),
        "calibration has the number 0.0",
    ),
    "temperatures": (
        lambda found: found.update(calibrator={"kind": "temperature", "levels": [1.0] * 4}),
        r"an array of shape \(4,\); expected \(3,\)",
    ),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_saved_decoding_values_are_checked(saved: Path, tmp_path: Path, name: str) -> None:
    change, message = BAD_VALUES[name]
    assert json.loads((saved / "thresholds.json").read_text())["calibrator"]["rows"]
    with pytest.raises(HillError, match=message):
        HillClassifier.load(changed(saved, tmp_path / "model", "thresholds.json", change))


def test_an_exported_model_with_nan_scores_is_an_error(exported: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from hill.export import OnnxClassifier
    from hill.export.runtime import GRAPH

    folder = tmp_path / "onnx"
    shutil.copytree(exported, folder)
    graph = onnx.load(folder / GRAPH)
    weight = next(weight for weight in graph.graph.initializer if weight.name == "model.head.bias")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full(7, np.nan, dtype=np.float32), weight.name))
    onnx.save(graph, folder / GRAPH)
    sums = json.loads((folder / CHECKSUMS).read_text())
    (folder / CHECKSUMS).write_text(json.dumps(sums | {GRAPH: sha256(folder / GRAPH)}))
    with pytest.raises(CheckpointError, match="gives scores that are not numbers; export it again"):
        OnnxClassifier.load(folder).predict(["wing"])


def result(nonfinite: bool) -> StepResult:
    return StepResult(torch.tensor(1.0), {}, torch.tensor(float(nonfinite)))


def test_a_gpu_is_checked_every_few_steps() -> None:
    """Between checks nothing waits for the GPU; the error names the first step that was not finite."""
    guard, progress = NonFiniteGuard(skip=False), Progress()
    data = Split(None, None, [f"d{i}" for i in range(99)])  # type: ignore[arg-type]
    for progress.step in range(1, CHECK_INTERVAL):
        guard.record(progress, data, np.array([progress.step]), result(progress.step > 3))
    with pytest.raises(HillError, match=r"step 4 is not finite \(loss 1\) on the documents d4; "):
        guard.record(progress, data, np.array([10]), result(False))
    counting = NonFiniteGuard(skip=True)
    for nonfinite in (True, False, True):
        counting.record(progress, data, np.array([1]), result(nonfinite))
    assert progress.skipped == 1
    counting.check(progress, data)
    assert progress.skipped == 3


def learn_together(rank: int, count: int, port: int, encoder: Path, folder: Path) -> None:
    """A training in which only one rank has an infinite loss, with finite gradients."""
    be_rank(rank, count, port)
    forward, calls = MODELS["hill"].forward, [0]

    def spoiled(model: Any, batch: Any) -> Output:
        output: Output = forward(model, batch)
        calls[0] += output.loss is not None
        return infinite_loss(output, calls[0]) if output.loss is not None and rank == 1 else output

    MODELS["hill"].forward = spoiled  # type: ignore[method-assign]
    model = tiny(encoder, skip_nonfinite=True, device="cpu")
    skipped = [report.skipped for report in reports(model, folder / "out") if isinstance(report, Step)]
    save_file(model.stored.model.state_dict(), folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(skipped))
    current_context().close()


def test_ranks_skip_the_same_steps(tiny_encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    start_ranks(learn_together, 2, tiny_encoder, tmp_path)
    one, other = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert json.loads((tmp_path / "0.json").read_text()) == json.loads((tmp_path / "1.json").read_text())
    assert json.loads((tmp_path / "0.json").read_text())[-1] == 1
    assert all(torch.equal(one[name], other[name]) for name in one)
