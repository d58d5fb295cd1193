"""Run peers on data sets: one process per program, data set and size, several at a time, each on cores of its own.

`python benchmarks/peers/run.py --data DIR --out FILE.jsonl --encoder FOLDER --slots "0,1 2,3" --gpu-slots "4,5"`

Every row is written as soon as it is there; rows that FILE.jsonl already has are skipped. Short runs come first. A run
that takes longer than --limit seconds is stopped and recorded with its limit. A run that fails is recorded with its
last message, and repeated next time.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
THREADS = ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON")
POLL = 0.1
"""Seconds between looks at the processes."""
PROGRAMS = {
    "tfidf-svm": "peer_sklearn",
    "tfidf-logreg": "peer_sklearn",
    "hiclass": "peer_hiclass",
    "omikuji-parabel": "peer_omikuji",
    "omikuji-bonsai": "peer_omikuji",
    "fasttext": "peer_fasttext",
    "vectors-logreg": "peer_vectors",
    "vectors-knn": "peer_vectors",
    "vectors-mlp": "peer_vectors",
    "setfit": "peer_setfit",
    "trainer": "peer_trainer",
    "hill-linear": "peer_hill",
    "hill-fast": "peer_hill",
    "hill-auto": "peer_hill",
}
"""The program of each peer; the packages that it needs are in the requirements file of the same name."""
TOGETHER = ("peer_vectors",)
"""Programs whose peers run in one process."""
SETS = ("icd", "wos", "attack", "arxiv")
SECONDS = {
    ("tfidf-svm", "cpu"): ((8, 45), (7, 12), (20, 75), (12, 75)),
    ("tfidf-logreg", "cpu"): ((12, 80), (8, 18), (35, 270), (14, 120)),
    ("hiclass", "cpu"): ((7, 20), (8, 15), (40, 230), (14, 70)),
    ("omikuji-parabel", "cpu"): ((7, 15), (9, 14), (10, 20), (18, 55)),
    ("omikuji-bonsai", "cpu"): ((7, 15), (9, 15), (10, 25), (18, 65)),
    ("fasttext", "cpu"): ((12, 60), (22, 50), (25, 100), (45, 150)),
    ("hill-linear", "cpu"): ((8, 18), (10, 17), (14, 30), (20, 95)),
    ("hill-fast", "cpu"): ((50, 90), (100, 140), (80, 150), (330, 350)),
    ("hill-auto", "cpu"): ((200, 270), (270, 280), (270, 280), (360, 360)),
    ("vectors-logreg", "cpu"): ((70, 220), (280, 340), (160, 390), (900, 2500)),
    ("vectors-logreg", "cuda"): ((30, 120), (25, 50), (60, 300), (50, 220)),
    ("setfit", "cuda"): ((30, 55), (35, 40), (35, 55), (50, 85)),
    ("trainer", "cuda"): ((45, 75), (55, 65), (50, 80), (65, 95)),
    ("hill-fast", "cuda"): ((15, 25), (15, 20), (20, 40), (20, 50)),
    ("hill-auto", "cuda"): ((15, 35), (25, 30), (35, 55), (35, 60)),
}
"""Expected seconds of a run with its grid, for each data set with 2,000 and with all documents; only for the order."""
UNKNOWN = 60.0
Key = tuple[str, str, int, str]


@dataclass(frozen=True)
class Job:
    """Peers of one program on one data set."""

    peers: tuple[str, ...]
    data: Path
    size: int
    on: str

    @property
    def keys(self) -> list[Key]:
        """What identifies the rows."""
        return [(peer, self.data.name, self.size, self.on) for peer in self.peers]

    @property
    def seconds(self) -> float:
        """How long it is expected to take."""
        table = dict(zip(SETS, SECONDS.get((self.peers[0], self.on), ()), strict=False))
        return float(table[self.data.name][not self.size]) if self.data.name in table else UNKNOWN


@dataclass
class Running:
    """A process, the folder with its files, and since when it runs."""

    job: Job
    process: subprocess.Popen[bytes]
    folder: TemporaryDirectory[str]
    start: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that it wrote."""
        file = Path(self.folder.name) / "rows.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def message(self) -> str:
        """The last line that it printed."""
        lines = (Path(self.folder.name) / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else ""


def make_jobs(given: argparse.Namespace, done: set[Key]) -> list[Job]:
    """The runs that are missing, the shortest first."""
    jobs = []
    for data in (given.data / name for name in given.sets):
        for size in given.sizes:
            for on in given.devices:
                groups: dict[str, list[str]] = {}
                for peer in given.peers:
                    program = PROGRAMS[peer]
                    first = next(name for name, other in PROGRAMS.items() if other == program)
                    runs = (peer if program not in TOGETHER else first, on) in SECONDS
                    if runs and (peer, data.name, size, on) not in done:
                        groups.setdefault(program if program in TOGETHER else peer, []).append(peer)
                jobs += [Job(tuple(peers), data, size, on) for peers in groups.values()]
    return sorted(jobs, key=lambda job: job.seconds)


def start(job: Job, cores: list[int], given: argparse.Namespace) -> Running:
    """Start a process on these cores; only a job on cuda sees the GPU."""
    folder = TemporaryDirectory()
    program = HERE / f"{PROGRAMS[job.peers[0]]}.py"
    command = [sys.executable, str(program), "--data", str(job.data), "--size", str(job.size), "--device", job.on]
    command += ["--encoder", given.encoder, "--minutes", str(given.minutes), "--rows", str(given.rows)]
    command += ["--out", f"{folder.name}/rows.jsonl", "--peers", *job.peers]
    environment = os.environ | {f"{name}_NUM_THREADS": str(len(cores)) for name in THREADS}
    environment |= {"TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1", "TMPDIR": folder.name}
    if job.on == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with Path(folder.name, "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    return Running(job, process, folder)


def finish(running: Running, limit: float | None, out: Path) -> None:
    """Write the rows of a process that ended or reached its limit; a peer without a row gets one that says why."""
    seconds = time.monotonic() - running.start
    rows = running.rows
    missing = [key for key in running.job.keys if key[0] not in {row["peer"] for row in rows}]
    for peer, data, size, on in missing:
        reason = {"limit": limit} if limit is not None else {"error": running.message}
        rows.append({"data": data, "peer": peer, "size": size, "on": on, **reason})
    with out.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    for row in rows:
        test = row.get("test", {})
        found = " / ".join(f"{100 * test[name]:.1f}" for name in ("micro_f1", "macro_f1")) if test else ""
        result = found or row.get("error") or f"stopped after {limit:g} s"
        print(f"{row['data']:8}{row['peer']:18}{row['size']:6} {row['on']:5}{seconds:7.1f} s  {result}", flush=True)
    running.folder.cleanup()


def stop(running: Running) -> None:
    """End a process and those that it started."""
    os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()


def run(jobs: list[Job], given: argparse.Namespace) -> None:
    """Start jobs in free slots until none is left, or until the time is over."""
    end = time.monotonic() + 60 * given.until if given.until else float("inf")
    slots = [("cpu", cores) for cores in given.slots] + [("cuda", cores) for cores in given.gpu_slots]
    busy: dict[int, Running] = {}
    try:
        while jobs or busy:
            for number, (on, cores) in enumerate(slots):
                left = end - time.monotonic()
                job = next((job for job in jobs if job.on == on and job.seconds <= left), None)
                if number not in busy and job is not None:
                    jobs.remove(job)
                    busy[number] = start(job, cores, given)
            for number, running in list(busy.items()):
                over = time.monotonic() - running.start > given.limit
                if running.process.poll() is None and over:
                    stop(running)
                    finish(running, given.limit, given.out)
                elif running.process.poll() is not None:
                    finish(running, None, given.out)
                else:
                    continue
                del busy[number]
            if time.monotonic() > end or (jobs and not busy and not any(fits(job, slots, end) for job in jobs)):
                break
            time.sleep(POLL)
    finally:
        for running in busy.values():
            stop(running)
            print("not finished:", *running.job.keys, flush=True)
    for job in jobs:
        print("not started:", *job.keys, flush=True)


def fits(job: Job, slots: list[tuple[str, list[int]]], end: float) -> bool:
    """Whether a job can still be started."""
    return any(on == job.on for on, _ in slots) and job.seconds <= end - time.monotonic()


def cores(text: str) -> list[list[int]]:
    """Slots of cores, such as `0,1 2,3`."""
    return [[int(core) for core in slot.split(",")] for slot in text.split()]


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the folders of the data sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--peers", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 0], help="training documents; 0 for all")
    parser.add_argument("--devices", nargs="+", choices=("cpu", "cuda"), default=["cpu", "cuda"])
    parser.add_argument("--slots", type=cores, default=[], help="cores of runs on the CPU, such as '0,1 2,3'")
    parser.add_argument("--gpu-slots", type=cores, default=[], help="cores of runs on the GPU")
    parser.add_argument("--limit", type=float, default=400.0, help="most seconds of a run")
    parser.add_argument("--until", type=float, default=0.0, help="minutes after which nothing runs any more; 0: never")
    parser.add_argument("--encoder", default="", help="the folder of the sentence encoder")
    parser.add_argument("--minutes", type=float, default=4.0, help="the time limit of hill on a CPU")
    parser.add_argument("--rows", type=int, default=0, help="use at most this many documents of each split: for tests")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    rows = [json.loads(line) for line in lines]
    settled = (row for row in rows if "test" in row or row.get("limit", 0) >= given.limit)
    done = {(row["peer"], row["data"], row["size"], row["on"]) for row in settled}
    run(make_jobs(given, done), given)


if __name__ == "__main__":
    main()
