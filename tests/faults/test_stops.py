"""Signals, double starts, and clocks that go backwards."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hill.cli.common import app
from hill.errors import CheckpointError
from hill.io import is_locked, lock_folder
from hill.train import Step
from hill.train.checkpoint import StopSignal, check_output_folder
from hill.train.distributed import Stopped
from tests.faults import record, times
from tests.faults.helpers import (
    check_complete,
    command,
    command_with_pause,
    end,
    learn,
    learn_slowly,
    lost,
    states,
    tiny,
    wait_for_state,
    write_data,
)
from tests.forks import start
from tests.train.test_trainer import toy_data


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_after_the_step_and_can_be_resumed(
    tiny_encoder: Path, reference: Path, tmp_path: Path, number: int
) -> None:
    given = [*write_data(tmp_path), "--encoder", str(tiny_encoder), "--set", "train.checkpoint_seconds=0"]
    given += ["--preset", "none"]
    for trial in range(times(1, 5)):
        out, said, go = tmp_path / f"out{trial}", tmp_path / "said", tmp_path / f"go{trial}"
        process = start(command_with_pause, [*given, "--out", str(out)], said, go)
        wait_for_state(out)
        os.kill(process.pid, number)
        go.touch()
        assert end(process, after=60) == 128 + number, said.read_text()
        assert "stopping after this step; repeat to stop at once" in said.read_text()
        assert "hill: stopped after step" in said.read_text().splitlines()[-1]
        assert not (out / "config.json").exists()
        again = start(command, [*given, "--out", str(out), "--resume"], said)
        assert end(again, after=60) == 0, said.read_text()
        assert "resumed after step" in said.read_text()
        record(f"{signal.Signals(number).name} to hill train", lost(reference, out))


def test_an_interrupt_in_python_leaves_a_checkpoint(tiny_encoder: Path, reference: Path, tmp_path: Path) -> None:
    model, out = tiny(tiny_encoder, checkpoint_seconds=3600.0), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt, match="stopped after step 5; to continue"):
        for report in model.training(toy_data(model.taxonomy), out):
            if isinstance(report, Step) and report.step == 5:
                os.kill(os.getpid(), signal.SIGINT)
    assert [state.name for state in states(out)] == ["state-00000005-0000"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with (out / "log.jsonl").open("a") as file:
        file.write('{"seconds": 1.0, "st')
    learn(tiny_encoder, out, resume=True)
    check_complete(out)
    record("interrupt in Python", lost(reference, out))


def test_the_second_signal_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal(True) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (Stopped(signal.SIGTERM, "").code, Stopped(signal.SIGINT, "").code) == (143, 130)


def test_existing_signal_handlers_stay() -> None:
    received = []
    before = signal.signal(signal.SIGTERM, lambda *given: received.append(given[0]))
    try:
        with StopSignal(True) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM] and not stop.received


def test_other_threads_and_ranks_install_no_handler() -> None:
    def enter() -> None:
        with StopSignal(True):
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers: list[Any] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    with StopSignal(False):
        handlers.append(signal.getsignal(signal.SIGINT))
    assert handlers == [signal.default_int_handler] * 2


def test_one_training_per_folder_at_a_time(tiny_encoder: Path, tmp_path: Path) -> None:
    given = [*write_data(tmp_path), "--encoder", str(tiny_encoder)]
    for trial in range(times(1, 5)):
        out = tmp_path / f"out{trial}"
        process = start(learn_slowly, tiny_encoder, out)
        wait_for_state(out)
        assert is_locked(out)
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
        for more in ([], ["--resume"]):
            result = CliRunner().invoke(app, [*given, "--out", str(out), *more])
            assert isinstance(result.exception, CheckpointError)
            assert str(result.exception).startswith(f"another process trains in '{out}'; wait until it ends")
        with pytest.raises(CheckpointError, match=f"another process writes to '{out}'"):
            learn(tiny_encoder, out, resume=True)
        assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.jsonl")}
        assert end(process) == -signal.SIGKILL, "it was still running"
        assert not is_locked(out)
        check_output_folder(out, resume=True)
        with lock_folder(out), lock_folder(out):
            assert not is_locked(out)
        record("second start in the same folder", 0)


def test_a_clock_that_goes_backwards(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    learn(tiny_encoder, tmp_path / "out", batch_size=2, checkpoint_seconds=3600.0)
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in log]
    assert len(seconds) > 5 and seconds == sorted(seconds) and 0 <= seconds[0] < seconds[-1] < 600
    record("clock that goes backwards", 0)
