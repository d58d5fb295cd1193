"""Print one table in Markdown of what the benchmarks measured, with other programs beside hill.

Run it as `python benchmarks/summary.py [--results FOLDER]`; `make bench` ends with it. It reads bench_cpu.json,
bench_encode.json, bench_start.json, bench_bulk.json and every bench_step_*.json of the folder. What was not measured
stays empty. The factor after a number says how many times as fast hill is.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
COLUMNS = [
    "documents per second",
    "hill",
    "plain PyTorch",
    "Hugging Face Trainer",
    "sentence-transformers, vectors alone",
    "machine",
]
ENCODERS = {"minilm": "MiniLM", "mpnet": "MPNet", "bert-base": "BERT base"}
PACKAGES = ("Python", "torch", "transformers", "onnxruntime")
Row = list[str]


def read(folder: Path, name: str) -> dict[str, Any]:
    """A file of results; empty if it is missing."""
    file = folder / f"{name}.json"
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def short(machine: str) -> str:
    """The description of a machine without the versions of packages."""
    return ", ".join(part for part in machine.split(", ") if not part.startswith(PACKAGES))


def row(what: str, hill: float | None, peers: list[float | None], machine: str) -> Row:
    """One row: hill, and every peer with how many times as fast hill is."""
    cells = ["" if peer is None else f"{peer:,.0f}" + (f" ({hill / peer:.1f}×)" if hill else "") for peer in peers]
    return [what, "" if hill is None else f"{hill:,.0f}", *cells, machine]


def cpu_rows(folder: Path) -> Iterator[Row]:
    """Prediction with PyTorch and with the exported model."""
    found = read(folder, "bench_cpu")
    speeds, machine = found.get("documents_a_second", {}), short(found.get("machine", ""))
    peers = [speeds.get("PyTorch fp32, plain"), None, speeds.get("sentence-transformers, vectors alone")]
    rows = {
        "predict, MiniLM, 128 tokens": "hill",
        "the same in int8, as on a CPU without bf16": "hill, int8",
        "the same in fp32": "hill, fp32",
        "the same, exported to ONNX in int8": "ONNX int8",
    }
    for what, name in rows.items():
        if name in speeds:
            yield row(what, speeds[name], peers, machine)


def step_rows(folder: Path) -> Iterator[Row]:
    """Training and prediction on a GPU: per encoder, the batch size at which most programs were measured."""
    for file in sorted(folder.glob("bench_step_*.json")):
        found = read(folder, file.stem)
        by_mode = {(each["mode"], each["batch"]): each for each in found["rows"] if each["model"] == "hill"}
        sizes = [size for mode, size in by_mode if mode == "fast"]
        if not sizes:
            continue

        peers = {size: sum((mode, size) in by_mode for mode in ("plain", "trainer")) for size in sizes}
        size = max(sizes, key=lambda size: (peers[size], by_mode["fast", size]["train_docs_s"]))
        name, machine = ENCODERS.get(found["encoder"], found["encoder"]), short(found.get("machine", ""))
        for what, key in (("train", "train_docs_s"), ("predict", "eval_docs_s")):
            own, plain, trainer = (by_mode.get((mode, size), {}).get(key) for mode in ("fast", "plain", "trainer"))
            text = f"{what}, {name}, 200 tokens" + (f", batches of {size}" if what == "train" else "")
            yield row(text, own, [plain, trainer, None], machine)


def encode_rows(folder: Path) -> Iterator[Row]:
    """Vectors of texts on a GPU; sentence-transformers with its best batch size."""
    found = read(folder, "bench_encode")
    speeds = {each["variant"]: each["docs_s"] for each in found.get("rows", ())}
    if speeds:
        best = max(value for name, value in speeds.items() if name.startswith("sentence-transformers"))
        what = "vectors, BERT base, 200 tokens, from text"
        yield row(what, speeds["hill, with tokenization"], [None, None, best], short(found.get("machine", "")))


def other_rows(folder: Path) -> Iterator[Row]:
    """Bulk prediction without a real encoder, and seconds to start."""
    bulk, start = read(folder, "bench_bulk"), read(folder, "bench_start")
    local = [each for each in bulk.get("rows", ()) if each["engine"].startswith("local")]
    if local:
        best = max(local, key=lambda each: float(each["rows_s"]))
        processes = best["engine"].removeprefix("local, ")
        what = f"bulk: read, decode and write only, {processes}"
        yield row(what, best["rows_s"], [None, None, None], short(bulk.get("machine", "")))
    for each in start.get("rows", ()):
        if "minilm" in each["command"]:
            seconds = f"{each['median_s']:.1f} s"
            yield [f"start `{each['command'].split(',')[0]}`", seconds, "", "", "", short(start.get("machine", ""))]


def table(folder: Path = RESULTS) -> str:
    """The table."""
    rows = [*cpu_rows(folder), *step_rows(folder), *encode_rows(folder), *other_rows(folder)]
    return "\n".join("| " + " | ".join(each) + " |" for each in [COLUMNS, ["---"] * len(COLUMNS), *rows])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    print(table(parser.parse_args().results))


if __name__ == "__main__":
    main()
