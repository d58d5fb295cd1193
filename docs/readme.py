"""Write the results into README.md and docs/results.md from the committed runs: `python docs/readme.py`."""

import json
import runpy
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from hill.research.rows import TABLES

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- results: made by docs/readme.py -->", "<!-- end of results -->"
QUALITY = {"micro_f1": "micro F1", "macro_f1": "macro F1", "hierarchical_f1": "hierarchical F1"}


def read(place: str) -> Any:
    """Read a file of results."""
    return json.loads((ROOT / place).read_text())


def link(place: str) -> str:
    """A link to a file of results."""
    return f"[{Path(place).name}]({place})"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def quality() -> str:
    """F1 of the demo on its test documents."""
    found = read("experiments/results/demo.json")
    models = {"TF-IDF + linear SVM (`linear`)": "linear_svm", "HILL": "hill"}
    rows = [[name, *(f"{100 * found[key][of]:.1f}" for of in QUALITY)] for name, key in models.items()]
    return table([f"`make demo`, test, one run ({link('experiments/results/demo.json')})", *QUALITY.values()], rows)


def rivals(data: str, encoder: str = "MiniLM", folder: str = "") -> str:
    """Every row of the main table that was run on a data set, at 0.5 and at one threshold tuned on dev."""
    rows = []
    for name, title in TABLES["main-table"].items():
        folders = sorted((ROOT / f"experiments/results/{folder or data}/runs").glob(f"{name}-[0-9]*"))
        tests = [json.loads((folder / "run.json").read_text())["test"] for folder in folders]
        if tests:
            cells = [
                of(tests, decoding, measure) for decoding in ("raw", "tuned") for measure in ("micro_f1", "macro_f1")
            ]
            rows.append([title, str(len(tests)), *cells])
    head = [f"{data}, test, {encoder}", "seeds", "micro F1 at 0.5", "macro F1", "micro F1, tuned threshold", "macro F1"]
    return table(head, rows)


def of(tests: list[dict[str, Any]], decoding: str, measure: str) -> str:
    """Mean and deviation over runs, in percent."""
    values = [100 * test[decoding][measure] for test in tests]
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if values[1:] else f"{values[0]:.1f}"


def speed() -> str:
    """Time and memory, from the benchmarks."""
    results = "benchmarks/results"
    cpu, step, check, tree = (
        read(f"{results}/bench_{name}.json") for name in ("cpu", "step_bert_base", "check", "tree")
    )
    best = max((row for row in step["rows"] if row["model"] == "hill"), key=lambda row: float(row["train_docs_s"]))
    each = cpu["documents_a_second"]
    large = max((row for row in tree["rows"] if row["method"] == "refined"), key=lambda row: int(row["vertices"]))
    rows = {
        "training HILL on BERT base, texts of about 200 tokens": (
            f"{best['train_docs_s']:,} documents per second",
            step,
            "step_bert_base",
        ),
        "predicting with HILL on MiniLM, texts of 128 tokens": (f"{each['hill']:.0f} documents per second", cpu, "cpu"),
        "the same, exported in 8 bits": (f"{each['ONNX int8']:.0f} documents per second", cpu, "cpu"),
        f"checking {check['documents']:,} documents": (f"{seconds(check)}, {check['peak_mib']} MiB", check, "check"),
        f"coding tree of {large['vertices']:,} labels": (seconds(large), tree, "tree"),
    }
    found = [
        [what, value, of.get("machine", f"{of.get('processors')} cores"), link(f"{results}/bench_{name}.json")]
        for what, (value, of, name) in rows.items()
    ]
    return table(["speed", "", "machine", ""], [*found, cost()])


def peers() -> str:
    """Speed of hill and of other programs, as `make bench` prints it."""
    return str(runpy.run_path(str(ROOT / "benchmarks" / "summary.py"))["table"]())


def cost() -> list[str]:
    """Time and memory of one epoch of HILL and HGCLR with the protocol of the released code."""
    runs = [read(f"experiments/results/arxiv/runs/{name}-timed-1/run.json") for name in ("hill", "hgclr")]
    hill, hgclr = (f"{run['seconds']['epoch']:.0f} s, {run['peak_memory'] / 2**20:,.0f} MiB" for run in runs)
    of = runs[0]["versions"]
    what = f"an epoch of HILL on MiniLM, {runs[0]['data']['documents']['train']:,} abstracts in batches of 16"
    machine = f"{of['device']}, torch {of['torch']}, transformers {of['transformers']}"
    return [what, f"{hill}; HGCLR {hgclr}", machine, "`experiments/results/arxiv/cost/table.md`"]


def seconds(found: dict[str, Any]) -> str:
    """The duration of a benchmark."""
    return f"{found['seconds']:.0f} s"


def small_table() -> str:
    """HILL, the flat baseline, the best rival and the linear model, with the tuned threshold."""
    rows = {"linear": "TF-IDF + linear SVM", "flat": "BERT (flat)", "hgclr": "HGCLR", "hill": "HILL"}
    lines = []
    for name, title in rows.items():
        cells = []
        for data in ("arxiv", "attack"):
            folders = sorted((ROOT / f"experiments/results/{data}/runs").glob(f"{name}-[0-9]*"))
            tests = [json.loads((folder / "run.json").read_text())["test"] for folder in folders]
            cells += [of(tests, "tuned", measure) for measure in ("micro_f1", "macro_f1")]
        lines.append([title, *cells])
    return table(["test, MiniLM", "arxiv: micro F1", "macro F1", "attack: micro F1", "macro F1"], lines)


def filled(text: str, content: str) -> str:
    """A page with these results between its markers."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.partition(END)[2]}"


def all_tables() -> str:
    """Every table, with links that work from the folder docs."""
    tables = rivals("arxiv"), rivals("arxiv", "gte-small", "arxiv-gte"), rivals("attack")
    content = "\n\n".join((quality(), *tables, speed(), peers()))
    return content.replace("](experiments/", "](../experiments/").replace("](benchmarks/", "](../benchmarks/")


PAGES = {"README.md": small_table, "docs/results.md": all_tables}

if __name__ == "__main__":
    for name, make in PAGES.items():
        page = ROOT / name
        page.write_text(filled(page.read_text(), make()))
