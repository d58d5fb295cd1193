"""Losses and gradients that are no numbers: training stops and says where, or leaves such steps out."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hill.classifier import HillClassifier
from hill.errors import HillError
from hill.models import MODELS
from hill.train import Epoch, Step
from hill.train.ranks import joined
from hill.train.session import MOST_SKIPPED, READ_STEPS, Progress, Split, Watch
from hill.train.steps import Steps
from hill.types import Output
from tests.faults import tell
from tests.faults.made import check_whole, learn, lost, states, tiny
from tests.test_distributed import be_rank
from tests.test_distributed import start as start_ranks
from tests.test_train import toy_data

Spoil = Callable[[Output, int], Output]
BAD = 4


def no_number(output: Output, call: int) -> Output:
    return replace(output, loss=output.loss * (torch.nan if call == BAD else 1))  # type: ignore[operator]


def infinite(output: Output, call: int) -> Output:
    return replace(output, loss=output.loss + (torch.inf if call == BAD else 0))  # type: ignore[operator]


def steep(output: Output, call: int) -> Output:
    """The loss is a number, its gradient is none."""
    assert output.loss is not None
    zero = output.logits.sum() * 0
    return replace(output, loss=output.loss + (zero.sqrt() * 1 if call == BAD else 0))


def always(output: Output, call: int) -> Output:
    return replace(output, loss=output.loss * torch.nan)  # type: ignore[operator]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Spoil], None]:
    """Spoils the loss of a training's fourth step, or of others."""

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


@pytest.mark.parametrize("how", [no_number, infinite, steep])
def test_a_step_that_is_not_finite_stops_the_training(
    tiny_encoder: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, how: Spoil
) -> None:
    with monkeypatch.context():
        spoil(how)
        model = tiny(tiny_encoder)
        steps = model.training(toy_data(model.taxonomy), tmp_path / "out")
        with pytest.raises(HillError, match=r"step 4 is not finite \(loss .*lower train.lr.*skip_nonfinite") as raised:
            list(steps)
    order = Steps(model._running, Split(*tokens(model))).order(0)
    wanted = ", ".join(str(place) for place in order[BAD - 1].tolist())
    assert f"on the documents {wanted}; " in str(raised.value)
    check_whole(tmp_path / "out")
    assert [state.name for state in states(tmp_path / "out")] == [f"state-{step:08d}-0000" for step in (2, 3)]
    monkeypatch.undo()
    learn(tiny_encoder, tmp_path / "out", resume=True)
    tell("loss that is no number", lost(unbroken, tmp_path / "out"))


def tokens(model: HillClassifier) -> tuple[Any, Any]:
    steps = model._tokenise(toy_data(model.taxonomy)["train"])
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value[0].tokens, end.value[0].labels


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_changes_nothing(
    tiny_encoder: Path, tmp_path: Path, spoil: Any, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    """With a fused optimiser, as on a GPU, it is the optimiser that leaves the step out."""
    spoil(no_number)
    if fused:
        make = torch.optim.AdamW
        monkeypatch.setattr(torch.optim, "AdamW", lambda *given, **options: make(*given, **options | {"fused": True}))
    model, found, seen = tiny(tiny_encoder, skip_nonfinite=True), {}, []
    for report in reports(model, tmp_path / "out"):
        if isinstance(report, Step):
            session = model._running
            optimiser = session.optimiser.state_dict()["state"]
            moments = {f"{n}.{k}": v for n, values in optimiser.items() for k, v in values.items()}
            found[report.step] = {k: v.clone() for k, v in (session.model.state_dict() | moments).items()}
            seen.append(report.skipped)
        elif isinstance(report, Epoch):
            assert report.metrics["skipped"] == 1
    assert model._running.optimiser.param_groups[0]["fused"] is fused
    assert any("running_mean" in name for name in found[BAD]) and any("exp_avg" in name for name in found[BAD])
    assert all(torch.equal(found[BAD][name], value) for name, value in found[BAD - 1].items())
    assert not all(torch.equal(found[BAD][name], found[BAD + 1][name]) for name in found[BAD])
    assert all(value.isfinite().all() for value in found[12].values())
    assert seen == [0] * 3 + [1] * 9
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in log if "step" in line] == [1]
    assert [line["dev"]["skipped"] for line in log if "dev" in line] == [1, 1]
    tell("step skipped", 0)


def test_a_stopped_training_goes_on_without_such_steps(tiny_encoder: Path, tmp_path: Path, spoil: Any) -> None:
    spoil(no_number)
    with pytest.raises(HillError, match="step 4 is not finite"):
        list(reports(tiny(tiny_encoder), tmp_path / "out"))
    spoil(lambda output, call: no_number(output, BAD if call == 1 else 0))
    steps = [r for r in reports(tiny(tiny_encoder, skip_nonfinite=True), tmp_path / "out", True) if isinstance(r, Step)]
    assert [step.step for step in steps] == list(range(4, 13)) and {step.skipped for step in steps} == {1}


def test_skipping_ends_where_no_step_is_finite(tiny_encoder: Path, tmp_path: Path, spoil: Any) -> None:
    spoil(always)
    model = tiny(tiny_encoder, skip_nonfinite=True, batch_size=2)
    with pytest.raises(HillError, match=f"{MOST_SKIPPED} steps in a row are not finite"):
        list(reports(model, tmp_path / "out"))


def test_weights_that_are_not_finite_are_not_saved(tiny_encoder: Path, tmp_path: Path) -> None:
    model = tiny(tiny_encoder)
    with pytest.raises(HillError, match=r"the weight 'text\..*' is not finite and not saved"):
        for report in reports(model, tmp_path / "out"):
            if isinstance(report, Step) and report.step == 3:
                with torch.no_grad():
                    next(model._running.model.parameters()).view(-1)[5] = torch.inf
                model._running.watch.add = lambda *_: None  # type: ignore[method-assign]
    check_whole(tmp_path / "out")
    assert [state.name for state in states(tmp_path / "out")] == [f"state-{step:08d}-0000" for step in (2, 3)]


def test_a_gpu_is_asked_now_and_then() -> None:
    """Between, nothing waits for it; the first step that was bad is the one that is told."""
    watch, progress = Watch(skip=False, often=False), Progress()
    data = Split(None, None, [f"d{i}" for i in range(99)])  # type: ignore[arg-type]
    for progress.step in range(1, READ_STEPS):
        watch.add(progress, data, np.array([progress.step]), torch.tensor(1.0), torch.tensor(float(progress.step > 3)))
    with pytest.raises(HillError, match=r"step 4 is not finite \(loss 1\) on the documents d4; "):
        watch.add(progress, data, np.array([10]), torch.tensor(1.0), torch.tensor(0.0))
    counting = Watch(skip=True, often=False)
    for bad in (1.0, 0.0, 1.0):
        counting.add(progress, data, np.array([1]), torch.tensor(1.0), torch.tensor(bad))
    assert progress.skipped == 1
    counting.read(progress, data)
    assert progress.skipped == 3


def learn_together(rank: int, count: int, port: int, encoder: Path, folder: Path) -> None:
    """A training of which one rank alone sees a loss that is infinite, with gradients that are not."""
    be_rank(rank, count, port)
    forward, calls = MODELS["hill"].forward, [0]

    def spoiled(model: Any, batch: Any) -> Output:
        output: Output = forward(model, batch)
        calls[0] += output.loss is not None
        return infinite(output, calls[0]) if output.loss is not None and rank == 1 else output

    MODELS["hill"].forward = spoiled  # type: ignore[method-assign]
    model = tiny(encoder, skip_nonfinite=True, device="cpu")
    skipped = [report.skipped for report in reports(model, folder / "out") if isinstance(report, Step)]
    save_file(model._running.model.state_dict(), folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(skipped))
    joined().leave()


def test_ranks_skip_the_same_steps(tiny_encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    start_ranks(learn_together, 2, tiny_encoder, tmp_path)
    one, other = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert json.loads((tmp_path / "0.json").read_text()) == json.loads((tmp_path / "1.json").read_text())
    assert json.loads((tmp_path / "0.json").read_text())[-1] == 1
    assert all(torch.equal(one[name], other[name]) for name in one)
