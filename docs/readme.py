"""Write the results into README.md and docs/results.md from the committed runs: `python docs/readme.py`."""

import json
import runpy
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

from scipy.stats import t

from hill.research.rows import TABLES

ROOT = Path(__file__).parent.parent
equal = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("equal.py"))))
BEGIN, END = "<!-- results: made by docs/readme.py -->", "<!-- end of results -->"
MEASURES = ("micro_f1", "macro_f1")
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
    models = {"TF-IDF + linear SVM (`linear`)": "linear_svm", "preset auto: encoder and linear model": "hill"}
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
    """Rows of the table with equal tuning, and the preset auto."""
    runs = preset_runs()
    auto = [PRESET_ROWS["auto"], *(cell for data in ("wos", "attack") for cell in scores(runs[data, "auto", 0]))]
    return equal.small_table([auto])


PRESET_ROWS = {
    "auto": "`hill train` (preset auto)",
    "linear": "TF-IDF + linear SVM",
    "recommended": "HILL, settings recommended before",
    "hill": "HILL, defaults of all settings",
    "flat": "BERT (flat), defaults of all settings",
}
MPNET_RUNS = "experiments/results/presets/auto-mpnet.jsonl"
DATA_SETS = {"wos": "wos", "arxiv": "arxiv", "attack": "attack", "icd": "ICD-10-CM blocks"}


def preset_runs() -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """The runs of experiments/presets.py by data set, row and documents (0: all)."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for name in ("auto", "auto-small", "linear", "others"):
        for line in (ROOT / f"experiments/results/presets/{name}.jsonl").read_text().splitlines():
            run = json.loads(line)
            found.setdefault((run["data"], run["row"], run["job"][2]), []).append(run)
    return found


def scores(runs: list[dict[str, Any]], part: str = "test") -> list[str]:
    """Micro and macro F1 of runs."""
    own = [{"own": run.get(part, run["test"])} for run in runs]  # without a linear member, both are the same
    return [of(own, "own", measure) for measure in ("micro_f1", "macro_f1")]


def presets() -> str:
    """The preset auto, the same without its linear model, and the linear model alone, on all documents."""
    rows, runs = [], preset_runs()
    for data, title in DATA_SETS.items():
        auto, linear = runs[data, "auto", 0], runs[data, "linear", 0][:1]
        cells = [*scores(auto), *scores(auto, "test_without_linear"), *scores(linear)]
        rows.append([title, f"{auto[0]['documents']:,}", str(len(auto)), *cells])
    auto = [json.loads(line) for line in (ROOT / MPNET_RUNS).read_text().splitlines()]
    cells = [*scores(auto), *scores(auto, "test_without_linear"), *scores(runs["wos", "linear", 0][:1])]
    rows.insert(1, ["wos, MPNet", f"{auto[0]['documents']:,}", str(len(auto)), *cells])
    head = ["`hill train`, test, MiniLM", "documents", "seeds", "micro F1", "macro F1"]
    return table([*head, "without linear: micro F1", "macro F1", "linear alone: micro F1", "macro F1"], rows)


def curves() -> str:
    """Micro and macro F1 by number of training documents, and by how much auto is above the linear model."""
    rows, gains, runs = [], [], preset_runs()
    order = list(PRESET_ROWS)
    for (data, row, count), found in sorted(
        runs.items(), key=lambda item: (item[0][0], item[0][2] or 10**9, order.index(item[0][1]))
    ):
        if count <= found[0]["documents"]:  # wos has fewer than 8,000
            size = f"{found[0]['documents']:,}"
            rows.append([DATA_SETS[data], size, PRESET_ROWS[row], str(len(found)), *scores(found)])
            if row == "auto" and (data, "linear", count) in runs:
                gains.append([DATA_SETS[data], size, *differences(found, runs[data, "linear", count])])
    head = ["test, MiniLM", "documents", "", "seeds", "micro F1", "macro F1"]
    above = ["auto minus linear, 95 % interval", "documents", "micro F1", "macro F1"]
    return table(head, rows) + "\n\n" + table(above, gains)


def differences(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[str]:
    """Mean differences in micro and macro F1 with the interval of Student's t; pairs have the same seed."""
    cells = []
    for measure in ("micro_f1", "macro_f1"):
        by_seed = {run["seed"]: 100 * run["test"][measure] for run in others}
        pairs = [100 * run["test"][measure] - by_seed[run["seed"]] for run in runs if run["seed"] in by_seed]
        half = float(t.ppf(0.975, len(pairs) - 1)) * stdev(pairs) / len(pairs) ** 0.5
        cells.append(f"{mean(pairs):+.1f} ({mean(pairs) - half:+.1f} to {mean(pairs) + half:+.1f})")
    return cells


def sizes_of(runs: dict[tuple[str, str, int], list[dict[str, Any]]], data: str) -> int:
    """The number of training documents of a data set."""
    return int(runs[data, "auto", 0][0]["documents"])


def draw_curves(file: Path) -> None:
    """Draw the learning curves."""
    from matplotlib import pyplot

    runs = preset_runs()
    figure, axes = pyplot.subplots(2, 4, figsize=(13, 5.6), sharex="col", layout="constrained")
    for column, (data, title) in enumerate(DATA_SETS.items()):
        for row, measure in enumerate(("micro_f1", "macro_f1")):
            axis = axes[row, column]
            for name, label in PRESET_ROWS.items():
                points = sorted(
                    (found[0]["documents"], [100 * run["test"][measure] for run in found])
                    for (of_data, of_row, _), found in runs.items()
                    if (of_data, of_row) == (data, name)
                )
                sizes, values = [size for size, _ in points], [each for _, each in points]
                errors = [stdev(each) if each[1:] else 0.0 for each in values]
                style = "-" if len(points) > 1 else ""
                label = label.replace("`", "")
                axis.errorbar(sizes, [mean(v) for v in values], errors, marker="o", linestyle=style, label=label)
            axis.set_xscale("log")
            axis.set_xticks(ticks := [500, 2_000, 8_000, 32_000], [f"{tick:,}" for tick in ticks])
            axis.minorticks_off()
            axis.set_xlim(400, 1.2 * sizes_of(runs, data))
            axis.grid(alpha=0.3)
            axis.set_ylabel(QUALITY[measure] if not column else "")
        axes[0, column].set_title(title)
        axes[1, column].set_xlabel("training documents")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(file, dpi=110)


# Other programs beside hill

PEER_RUNS = "benchmarks/results/peers.jsonl"
PEERS = {
    "hill-auto": "hill, preset auto",
    "hill-fast": "hill, preset fast",
    "hill-linear": "hill, model linear",
    "tfidf-svm": "scikit-learn: TF-IDF + LinearSVC",
    "tfidf-logreg": "scikit-learn: TF-IDF + logistic regression",
    "hiclass": "HiClass, local classifiers",
    "omikuji-parabel": "omikuji, Parabel",
    "omikuji-bonsai": "omikuji, Bonsai",
    "fasttext": "fastText",
    "vectors-logreg": "sentence-transformers + logistic regression",
    "vectors-knn": "sentence-transformers + k-NN",
    "vectors-mlp": "sentence-transformers + MLP",
    "setfit": "SetFit",
    "trainer": "Hugging Face Trainer, flat head",
}
NO_PEER_RUNS = "There are no results yet."
DEVICES = {"cpu": "2 cores", "cuda": "GPU"}


def peer_runs() -> dict[tuple[str, str, int, str], dict[str, Any]]:
    """The last run of each peer of benchmarks/peers by data set, peer, documents (0: all) and device."""
    file = ROOT / PEER_RUNS
    runs = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(run["data"], run["peer"], run["size"], run["on"]): run for run in runs}


def peer_tables() -> str:
    """One table per data set: every peer with 2,000 and with all documents, the best micro F1 first."""
    tables, runs = [], peer_runs()
    for data, title in DATA_SETS.items():
        found = [run for (of_data, *_), run in runs.items() if of_data == data]
        found.sort(key=lambda run: (run["size"] or 10**9, -run.get("test", {}).get("micro_f1", -1.0)))
        head = [f"{title}, test", "documents", "on", "micro F1", "macro F1", "hierarchical F1", "violations"]
        head += ["training", "with grid", "predictions per second", "memory (GPU)", "model"]
        if found:
            tables.append(table(head, [peer_row(run) for run in found]))
    return "\n\n".join(tables) or NO_PEER_RUNS


def peer_row(run: dict[str, Any]) -> list[str]:
    """The cells of a run; one that was stopped or failed says so."""
    name, on = PEERS[run["peer"]], DEVICES[run["on"]]
    if "test" not in run:
        reason = f"stopped after {run['limit']:.0f} s" if "limit" in run else "failed"
        return [name, f"{run['size']:,}" if run["size"] else "all", on, reason, *[""] * 8]
    test, memory = run["test"], run["mib"]
    shares = [f"{100 * test[measure]:.1f}" for measure in QUALITY]
    gpu = f" ({memory['gpu']:,})" if "gpu" in memory else ""
    return [
        name,
        f"{run['documents']:,}",
        on,
        *shares,
        f"{100 * test['violations']:.1f} %",
        f"{run['seconds']:,.0f} s",
        f"{run['seconds_with_grid']:,.0f} s",
        f"{run['documents_per_second']:,.0f}",
        f"{memory['process']:,}{gpu} MiB",
        f"{run['model_mib']:,.0f} MiB",
    ]


def draw_peers(folder: Path) -> None:
    """Draw quality against training time, and quality by number of documents."""
    from matplotlib import pyplot

    scored = {key: run for key, run in peer_runs().items() if "test" in run}
    styles = {peer: (f"C{number % 10}", "oPsD"[number // 10 * 2 + number % 2]) for number, peer in enumerate(PEERS)}
    for name, x in (("peers-time", "seconds"), ("peers-documents", "documents")):
        shown = {
            data: title
            for data, title in DATA_SETS.items()
            if any(key[0] == data and (x == "documents" or not key[2]) for key in scored)
        }
        figure, axes = pyplot.subplots(1, len(shown), figsize=(14, 5), layout="constrained", squeeze=False)
        axes = axes[0]
        for axis, (data, title) in zip(axes, shown.items(), strict=True):
            for peer, (colour, marker) in styles.items():
                runs = [run for (of_data, of_peer, *_), run in scored.items() if (of_data, of_peer) == (data, peer)]
                for on, fill in (("cpu", "none"), ("cuda", colour)):
                    own = [run for run in runs if run["on"] == on and (x == "documents" or not run["size"])]
                    points = sorted((run[x], 100 * run["test"]["micro_f1"]) for run in own)
                    axis.plot(
                        *([point[of] for point in points] for of in (0, 1)),
                        color=colour,
                        marker=marker,
                        markerfacecolor=fill,
                        linewidth=1,
                        label=f"{PEERS[peer]} ({DEVICES[on]})" if points else None,
                    )
            axis.set(
                xscale="linear", title=title, xlabel="training seconds" if x == "seconds" else "training documents"
            )
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("micro F1")
        entries = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4, fontsize="small")
        figure.savefig(folder / f"{name}.png", dpi=110)


# Few or no labels

FEW = "experiments/results/loop"
SIZES = (0, 1, 2, 4, 8, 16, 32)
FEW_ROWS = {
    "ridge": "ridge regression",
    "ridge+start": "ridge regression + start",
    "linear": "`linear`",
    "linear+start": "`linear` + start",
    "setfit": "SetFit",
    "auto": "`hill train`",
    "auto+start": "`hill train --warm-start START`",
}
STEPS = {
    "before": "before: trained without the new labels or documents",
    "apply": "`hill taxonomy apply`, no training",
    "add 1": "`--add`, 1 document per new label",
    "add 2": "2 documents",
    "add 4": "4 documents",
    "add 8": "8 documents",
    "add all": "`--add`, all new documents",
    "whole": "all documents at once",
}


def lines_of(*names: str) -> list[dict[str, Any]]:
    """The lines of the files of results that exist."""
    files = [ROOT / FEW / f"{name}.jsonl" for name in names]
    return [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def few_runs() -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """The runs of experiments/learning_curve.py on test by data set, row and documents per label."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for run in lines_of("learning_curve", "learning_curve_trained"):
        if run["split"] == "test" and "settings" not in run:
            found.setdefault((run["data"], run["row"], run["per_label"]), []).append(run)
    for data in {key[0] for key in found}:  # without labels, rows that begin with the start are the start
        for row in FEW_ROWS:
            if row.endswith("+start") and any(key[:2] == (data, row) for key in found):
                found[data, row, 0] = found[data, "start", 0]
    return found


def few_labels() -> str:
    """Micro and macro F1 by documents per label."""
    runs, rows = few_runs(), []
    for data in ("wos", "attack"):
        for row, title in FEW_ROWS.items():
            found = {size: runs[data, row, size] for size in SIZES if (data, row, size) in runs}
            if found:
                seeds = sorted({len(each) for size, each in found.items() if size})
                cells = [
                    " / ".join(f"{100 * mean(run[key] for run in found[size]):.1f}" for key in MEASURES)
                    if size in found
                    else ""
                    for size in SIZES
                ]
                rows.append([f"{data}: {title}", " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))), *cells])
    return table(["micro / macro F1, documents per label:", "seeds", *map(str, SIZES)], rows)


def later_documents() -> str:
    """F1 of old and new labels when documents come later."""
    runs: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for run in lines_of("continual"):
        if run["split"] == "test":
            runs.setdefault((run["data"], run["scenario"], run["step"]), {})[run["seed"]] = run
    rows = []
    for data in ("wos", "attack"):
        for scenario, title in {
            "labels": "a tenth of the leaves is new",
            "documents": "30 % of the documents are new",
        }.items():
            before = runs.get((data, scenario, "before"), {})
            for step, name in STEPS.items():
                found = runs.get((data, "whole" if step == "whole" else scenario, step), {})
                if found:
                    part = "old" if scenario == "labels" else "all"
                    both = [found[seed] for seed in found if seed in before]
                    losses = [
                        f"{100 * mean(run[part][key] - before[run['seed']][part][key] for run in both):+.1f}"
                        for key in MEASURES
                        if both and step != "before"
                    ]
                    cells = [mean_pair(found.values(), part), " / ".join(losses)]
                    cells.append(mean_pair(found.values(), "new") if scenario == "labels" and step != "before" else "")
                    rows.append([f"{data}, {title}", name, str(len(found)), *cells])
    if not rows:
        return "Not measured yet."
    return table(
        ["test, MiniLM", "", "seeds", "old labels: micro / macro F1", "difference from before", "new labels"], rows
    )


def mean_pair(runs: Iterable[dict[str, Any]], part: str) -> str:
    """Mean micro and macro F1 of a part of the labels."""
    found = list(runs)
    return " / ".join(f"{100 * mean(run[part][key] for run in found):.1f}" for key in MEASURES)


def draw_few_labels(file: Path) -> None:
    """Draw F1 by documents per label."""
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "hill"
    runs = few_runs()
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 6), sharex=True, layout="constrained")
    for column, data in enumerate(("wos", "attack")):
        for line, measure in enumerate(MEASURES):
            axis = axes[line, column]
            for row, title in FEW_ROWS.items():
                sizes = [size for size in SIZES if (data, row, size) in runs]
                values = [[100 * run[measure] for run in runs[data, row, size]] for size in sizes]
                errors = [stdev(each) if each[1:] else 0.0 for each in values]
                places = [SIZES.index(size) for size in sizes]
                style = {"linestyle": "--"} if row.endswith("+start") else {}
                label = title.replace("`", "")
                if places:
                    axis.errorbar(places, [mean(v) for v in values], errors, marker="o", ms=3, label=label, **style)
            axis.set_xticks(range(len(SIZES)), map(str, SIZES))
            axis.grid(alpha=0.3)
            axis.set_title(f"{data}: {QUALITY[measure]}", fontsize=10)
        axes[1, column].set_xlabel("labelled documents per label")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(file, metadata={"Date": None})


def filled(text: str, content: str) -> str:
    """A page with these results between its markers."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.partition(END)[2]}"


def all_tables() -> str:
    """Every table, with links that work from the folder docs."""
    tables = rivals("arxiv"), rivals("arxiv", "gte-small", "arxiv-gte"), rivals("attack")
    content = "\n\n".join((presets(), quality(), *tables, speed(), peers()))
    return content.replace("](experiments/", "](../experiments/").replace("](benchmarks/", "](../benchmarks/")


PAGES = {
    "README.md": small_table,
    "docs/results.md": all_tables,
    "docs/hierarchy.md": equal.tables,
    "docs/presets.md": curves,
    "docs/peers.md": peer_tables,
    "docs/start.md": few_labels,
    "docs/taxonomies.md": later_documents,
}

if __name__ == "__main__":
    for name, make in PAGES.items():
        page = ROOT / name
        page.write_text(filled(page.read_text(), make()))
    draw_curves(ROOT / "docs" / "img" / "learning-curves.png")
    if peer_runs():
        draw_peers(ROOT / "docs" / "img")
    equal.draw(ROOT / "docs" / "img" / "hierarchy.svg")
    draw_few_labels(ROOT / "docs" / "img" / "few-labels.svg")
