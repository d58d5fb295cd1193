"""Compare the server with `hill predict`: texts per second, latency, overload, and memory over many requests.

Clients in this process send requests to a server process over loopback. Run it as
`python benchmarks/bench_serve.py [--model FOLDER --texts FILE] [--count 1500] [--clients 32] [--requests 100000]`;
without a model, a small encoder with random weights and synthetic texts are used. Memory is measured with a tiny model.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_predict import make_model
from rich.console import Console
from rich.table import Table

COLUMNS = ("what", "requests", "texts_s", "cpu_ms_a_text", "p50_ms", "p99_ms", "note")
TIMEOUT = 10.0
PAUSE = 0.5
"""Seconds that a client waits after a 503 answer before it sends the next text."""


class Client:
    """A keep-alive connection; a minimal client, to leave the processor to the server."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        head = "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}"
        self._writer.write(head.encode() + b"\r\n\r\n" + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        return int(lines[0].split()[1]), await self._reader.readexactly(length)


class Server:
    """A server process, with its processor time and memory."""

    def __init__(self, model: Path, *options: Any) -> None:
        program = "from hill.cli import main, serve; main()"
        command = [sys.executable, "-c", program, "serve", str(model), "--port", "0", *map(str, options)]
        self._folder = tempfile.TemporaryDirectory()
        log = Path(self._folder.name) / "log"
        with log.open("w") as out:
            self._process = subprocess.Popen(command, stderr=out)
        while "\n" not in (text := log.read_text()):
            assert self._process.poll() is None, "the server did not start"
            time.sleep(0.1)
        self.port = int(json.loads(text.splitlines()[0])["url"].rsplit(":", 1)[1])

    def cpu(self) -> float:
        """Processor seconds."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident memory in MiB."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def end(self) -> None:
        """Stop the server."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self._folder.cleanup()


@contextlib.contextmanager
def serving(model: Path, *options: Any) -> Iterator[Server]:
    """Run a server within a context."""
    server = Server(model, *options)
    try:
        yield server
    finally:
        server.end()


@contextlib.asynccontextmanager
async def clients(port: int, count: int) -> AsyncIterator[list[Client]]:
    """Open this number of connections."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Client(port)) for _ in range(count)]


async def load(port: int, bodies: list[bytes], count: int) -> tuple[list[tuple[int, bytes]], list[float]]:
    """Send all bodies from this number of clients, one request at a time each; returns answers and latencies."""
    answers: list[Any] = [None] * len(bodies)
    seconds = [0.0] * len(bodies)
    left = iter(range(len(bodies)))

    async def go_on(client: Client) -> None:
        for place in left:
            start = time.perf_counter()
            answers[place] = await client.ask(bodies[place])
            seconds[place] = time.perf_counter() - start
            if answers[place][0] == 503:
                await asyncio.sleep(PAUSE)

    async with clients(port, count) as asking:
        await asyncio.gather(*map(go_on, asking))
    return answers, seconds


def measure(server: Server, texts: list[str], count: int) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """Send every text in its own request, with this number of clients at once."""
    bodies = [json.dumps({"text": text}).encode() for text in texts]
    cpu, start = server.cpu(), time.perf_counter()
    answers, seconds = asyncio.run(load(server.port, bodies, count))
    wall, spent = time.perf_counter() - start, server.cpu() - cpu
    good = sum(status == 200 for status, _ in answers)
    p50, p99 = np.percentile(np.array(seconds) * 1000, [50, 99])
    row = {
        "requests": len(texts),
        "texts_s": round(good / wall, 1),
        "cpu_ms_a_text": round(spent / max(good, 1) * 1000, 2),
    }
    return row | {"p50_ms": round(p50, 1), "p99_ms": round(p99, 1)}, answers


PREDICT = """
import resource, sys, time
from pathlib import Path
from hill.cli.common import load_model
from hill.bulk.run import predict_file
model = load_model(Path(sys.argv[1]))
model.predictions(["warm up"] * 64)
used = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
cpu, start = used(), time.perf_counter()
count = predict_file(model, Path(sys.argv[2]), Path(sys.argv[3]))
print((time.perf_counter() - start) / count, (used() - cpu) / count)
"""


def predict(model: Path, texts: list[str], folder: Path) -> tuple[dict[str, Any], list[list[str]]]:
    """Predict the same texts with `hill predict` after a warm-up; returns the measurements and the labels per text."""
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = [sys.executable, "-c", PREDICT, str(model), str(folder / "in.jsonl"), str(folder / "out.jsonl")]
    wall, cpu = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-2:])
    found = [json.loads(line)["labels"] for line in (folder / "out.jsonl").read_text().splitlines()]
    row = {"what": "hill predict", "requests": len(texts), "texts_s": round(1 / wall, 1)}
    return row | {"cpu_ms_a_text": round(cpu * 1000, 2)}, found


def compare(model: Path, texts: list[str], count: int, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Measure `hill predict` and the server alternately, because a busy machine varies in speed."""
    rows = []
    with serving(model) as server:
        measure(server, texts[:64], count)
        for _ in range(rounds):
            bulk, expected = predict(model, texts, folder)
            row, answers = measure(server, texts, count)
            wrong = _wrong(answers, expected)
            late = sum(status != 200 for status, _ in answers)
            ratios = [row["texts_s"] / bulk["texts_s"], bulk["cpu_ms_a_text"] / row["cpu_ms_a_text"]]
            note = f"{ratios[0]:.0%} of predict, by processor time {ratios[1]:.0%}; {wrong} wrong, {late} late"
            rows += [bulk, {"what": f"serve, {count} clients", **row, "note": note, "wrong": wrong, "late": late}]
    return rows


def overload(model: Path, texts: list[str], count: int) -> dict[str, Any]:
    """Use many more clients than the queue holds: each gets an answer in time or a 503, and no request is lost."""
    options = ("--queue", 32, "--max-texts", 32, "--batch", 16, "--timeout", TIMEOUT)
    with serving(model, *options) as server:
        _, alone = measure(server, texts, 1)
        row, answers = measure(server, (texts * count)[: 10 * count], count)
    statuses = Counter(status for status, _ in answers)
    wrong = _wrong(answers, [_labels(answer) for answer in alone] * len(answers))
    note = f"{dict(statuses)}; {wrong} wrong, {sum(statuses[s] for s in statuses if s not in (200, 503))} other"
    return {"what": f"overload, {count} clients", **row, "note": note, "wrong": wrong}


def remember(requests: int, folder: Path, count: int) -> dict[str, Any]:
    """The memory while a tiny model answers this number of requests with short texts."""
    make_model(folder, "tiny")
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in row) for row in draw.integers(0, 2000, (requests // 20, 5))]
    held = []
    with serving(folder / "model") as server:
        for _ in range(20):
            row, answers = measure(server, texts, count)
            assert all(status == 200 for status, _ in answers)
            held.append(round(server.memory(), 1))
    note = f"{held[0]} MiB after 5 %, {held[9]} after half, {held[-1]} at the end"
    return {"what": "memory, tiny model", **row, "requests": 20 * len(texts), "note": note, "memory_mib": held}


def _wrong(answers: list[tuple[int, bytes]], expected: list[list[str]]) -> int:
    """The number of answers with unexpected labels."""
    pairs = zip(answers, expected, strict=False)
    return sum(answer[0] == 200 and _labels(answer) != labels for answer, labels in pairs)


def _labels(answer: tuple[int, bytes]) -> list[str]:
    return [label["id"] for label in json.loads(answer[1])["predictions"][0]["labels"]]


def main() -> None:
    """Measure everything and print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--texts", type=Path, help="JSONL with text")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overload", type=int, default=300, help="clients of the overload; 0 to leave it out")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = arguments.model
        if model is None:
            make_model(folder, "minilm")
            model = (folder / "model").rename(folder / "shaped")
        texts = _read(arguments.texts, arguments.count)
        rows = compare(model, texts, arguments.clients, folder, arguments.rounds) if arguments.rounds else []
        if arguments.overload:
            rows.append(overload(model, texts[:100], arguments.overload))
        if arguments.requests:
            rows.append(remember(arguments.requests, folder, arguments.clients))
    table = Table(title="hill serve")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), justify="left" if column in ("what", "note") else "right")
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in COLUMNS))
    Console(width=150).print(table)
    facts = {"machine": f"{os.cpu_count()} cores, {platform.machine()}", "threads": os.environ.get("OMP_NUM_THREADS")}
    result = {"benchmark": "serve", "model": model.name, **facts, "rows": rows}
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def _read(file: Path | None, count: int) -> list[str]:
    if file is None:
        draw = np.random.default_rng(1)
        return [" ".join(f"w{word}" for word in row) for row in draw.integers(0, 2000, (count, 60))]
    return [json.loads(line)["text"] for line in file.read_text().splitlines()[:count]]


if __name__ == "__main__":
    main()
