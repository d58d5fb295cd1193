"""Signals, double starts and clocks that go backwards."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hill.cli import app
from hill.disk import claimed, is_claimed
from hill.errors import CheckpointError
from hill.train import Step
from hill.train.run import check_out
from hill.train.stop import Stop, Stopped
from tests.faults import tell, times
from tests.faults.made import (
    check_whole,
    command,
    end,
    held,
    learn,
    learn_slowly,
    lost,
    states,
    tiny,
    wait_for_state,
    write_data,
)
from tests.forks import start
from tests.test_train import toy_data


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_after_the_step_and_says_how_to_go_on(
    tiny_encoder: Path, unbroken: Path, tmp_path: Path, number: int
) -> None:
    given = [*write_data(tmp_path), "--encoder", str(tiny_encoder), "--set", "train.checkpoint_seconds=0"]
    for trial in range(times(1, 5)):
        out, said, go = tmp_path / f"out{trial}", tmp_path / "said", tmp_path / f"go{trial}"
        process = start(held, [*given, "--out", str(out)], said, go)
        wait_for_state(out)
        os.kill(process.pid, number)
        go.touch()
        assert end(process, after=60) == 128 + number, said.read_text()
        assert "stopping after this step; once more to stop at once" in said.read_text()
        assert "hill: stopped after step" in said.read_text().splitlines()[-1]
        assert not (out / "config.json").exists()
        again = start(command, [*given, "--out", str(out), "--resume"], said)
        assert end(again, after=60) == 0, said.read_text()
        assert "resumed after step" in said.read_text()
        tell(f"{signal.Signals(number).name} to hill train", lost(unbroken, out))


def test_an_interrupt_in_python_leaves_a_checkpoint(tiny_encoder: Path, unbroken: Path, tmp_path: Path) -> None:
    model, out = tiny(tiny_encoder, checkpoint_seconds=3600.0), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt, match="stopped after step 5; to go on"):
        for report in model.training(toy_data(model.taxonomy), out):
            if isinstance(report, Step) and report.step == 5:
                os.kill(os.getpid(), signal.SIGINT)
    assert [state.name for state in states(out)] == ["state-00000005-0000"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with (out / "log.jsonl").open("a") as file:
        file.write('{"seconds": 1.0, "st')
    learn(tiny_encoder, out, resume=True)
    check_whole(out)
    tell("interrupt in Python", lost(unbroken, out))


def test_the_second_signal_stops_at_once() -> None:
    with Stop(True) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert (Stopped(signal.SIGTERM, "").code, Stopped(signal.SIGINT, "").code) == (143, 130)


def test_who_listens_already_goes_on_listening() -> None:
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *given: heard.append(given[0]))
    try:
        with Stop(True) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] and not stop.asked


def test_other_threads_and_ranks_do_not_listen() -> None:
    def enter() -> None:
        with Stop(True):
            kept.append(signal.getsignal(signal.SIGINT))

    kept: list[Any] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    with Stop(False):
        kept.append(signal.getsignal(signal.SIGINT))
    assert kept == [signal.default_int_handler] * 2


def test_a_folder_is_for_one_training_at_a_time(tiny_encoder: Path, tmp_path: Path) -> None:
    given = [*write_data(tmp_path), "--encoder", str(tiny_encoder)]
    for trial in range(times(1, 5)):
        out = tmp_path / f"out{trial}"
        process = start(learn_slowly, tiny_encoder, out)
        wait_for_state(out)
        assert is_claimed(out)
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
        for more in ([], ["--resume"]):
            result = CliRunner().invoke(app, [*given, "--out", str(out), *more])
            assert isinstance(result.exception, CheckpointError)
            assert str(result.exception).startswith(f"another process trains in '{out}'; wait until it ends")
        with pytest.raises(CheckpointError, match=f"another process writes to '{out}'"):
            learn(tiny_encoder, out, resume=True)
        assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
        assert end(process) == -signal.SIGKILL, "it was still at work"
        assert not is_claimed(out)
        check_out(out, resume=True)
        with claimed(out), claimed(out):
            assert not is_claimed(out)
        tell("second start in the same folder", 0)


def test_a_clock_that_goes_backwards(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    learn(tiny_encoder, tmp_path / "out", batch_size=2, checkpoint_seconds=3600.0)
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in log]
    assert len(seconds) > 5 and seconds == sorted(seconds) and 0 <= seconds[0] < seconds[-1] < 600
    tell("clock that goes backwards", 0)
