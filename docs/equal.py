"""Tables and figure of docs/hierarchy.md, from the runs of experiments/equal_tuning.py; used by docs/readme.py."""

import csv
import json
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import t

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "experiments/results/equal/runs.jsonl"
PUBLISHED = ROOT / "hill/research/settings/paper.csv"
MEASURES = ("micro_f1", "macro_f1")
FLAT, OURS, SHUFFLED = "flat", "hill-ours", "hill-ours-shuffled"
ENCODERS = {"minilm": "MiniLM", "mpnet": "mpnet"}
MARGIN = 0.2
"""Two learners are taken as equal if their difference is within this many points of F1."""
TITLES = {
    "linear": "TF-IDF + linear SVM",
    "textrcnn": "TextRCNN",
    "hiagm-rcnn": "HiAGM on TextRCNN",
    "htcinfomax-rcnn": "HTCInfoMax on TextRCNN",
    "himatch-rcnn": "HiMatch on TextRCNN",
    "flat": "flat (the paper's row BERT)",
    "hiagm": "HiAGM",
    "htcinfomax": "HTCInfoMax",
    "himatch": "HiMatch",
    "hgclr": "HGCLR",
    "hitin": "HiTIN",
    "hill-paper": "HILL (paper)",
    "flat-names": "flat + names",
    "flat-zlpr": "flat + names + ZLPR",
    "flat-units": "flat + units (wide net)",
    "flat-attention": "flat + names + ZLPR + label-wise attention",
    "hill-ours": "HILL (ours)",
    "hill-ours-shuffled": "HILL (ours), leaves shuffled",
}
IN_PAPER = {"hill-paper": "hill"}
"""Rows with another name in the paper's table."""
Scores = dict[int, tuple[float, float]]


def runs(encoder: str = "minilm", documents: int = 0) -> dict[str, dict[str, Scores]]:
    """Micro and macro F1 on test in percent, by data set, row and seed."""
    found: dict[str, dict[str, Scores]] = {}
    for line in RUNS.read_text().splitlines():
        run = json.loads(line)
        if (run["stage"], run["encoder"], run["documents"]) == ("test", encoder, documents) and "test" in run:
            own = found.setdefault(run["data"], {}).setdefault(run["row"], {})
            own[run["seed"]] = tuple(100 * run["test"][name] for name in MEASURES)  # type: ignore[assignment]
    return found


def of(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if values[1:] else f"{values[0]:.1f}"


def paired(one: Scores, other: Scores, measure: int) -> list[float]:
    """The differences of two rows, seed by seed."""
    return [one[seed][measure] - other[seed][measure] for seed in sorted(one.keys() & other.keys())]


def interval(values: list[float], level: float) -> tuple[float, float]:
    """The interval of Student's t for the mean."""
    half = float(t.ppf((1 + level) / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return mean(values) - half, mean(values) + half


def p_value(values: list[float], at: float = 0.0) -> float:
    """Two-sided p of a t-test of the mean against a value."""
    if stdev(values) == 0:
        return float(mean(values) == at)
    statistic = (mean(values) - at) / (stdev(values) / len(values) ** 0.5)
    return float(2 * t.sf(abs(statistic), len(values) - 1))


def holm(values: dict[str, float]) -> dict[str, float]:
    """p-values corrected for the number of tests by Holm's method."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(values, key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[name]))
        corrected[name] = largest
    return corrected


def published() -> dict[str, tuple[str, str]]:
    """The paper's micro and macro F1 on WOS by row."""
    with PUBLISHED.open() as file:
        rows = {row["row"]: (row["wos micro"], row["wos macro"]) for row in csv.DictReader(file)}
    return rows | {ours: rows[theirs] for ours, theirs in IN_PAPER.items() if theirs in rows}


def difference(values: list[float], p: float) -> str:
    """The mean difference, bold if it is significant."""
    mark = "**" if p < 0.05 else ""
    return f"{mark}{mean(values):+.1f}{mark}"


def main_tables() -> str:
    """One table per encoder and data set."""
    tables = ((encoder, data, rows) for encoder in ENCODERS for data, rows in runs(encoder).items())
    return "\n\n".join(main_table(encoder, data, rows) for encoder, data, rows in tables if FLAT in rows)


def main_table(encoder: str, data: str, rows: dict[str, Scores]) -> str:
    """Every row, and its difference from the flat head."""
    flat, paper = rows[FLAT], published()
    tests = {
        measure: holm(
            {
                name: p_value(pairs)
                for name, scores in rows.items()
                if name != FLAT and len(pairs := paired(scores, flat, place)) > 1 and stdev(pairs)
            }
        )
        for place, measure in enumerate(MEASURES)
    }
    head = [f"{data}, test, {ENCODERS[encoder]}", "seeds", "micro F1", "macro F1", "micro − flat", "macro − flat"]
    lines = []
    for name in (name for name in TITLES if name in rows):
        scores = rows[name]
        cells = [TITLES[name], str(len(scores)), *(of([each[k] for each in scores.values()]) for k in (0, 1))]
        for place, measure in enumerate(MEASURES):
            p = tests[measure].get(name)
            pairs = paired(scores, flat, place)
            cells.append("" if name == FLAT or not pairs else difference(pairs, 1.0 if p is None else p))
        if data == "wos":
            cells.append(" / ".join(paper.get(name, ())))
        lines.append(cells)
    if data == "wos":
        head.append("paper: BERT, six times the documents")
    return table(head, lines)


def shuffle_table() -> str:
    """HILL (ours) against itself with permuted leaves: difference, interval and test of equivalence."""
    lines, found = [], {}
    for encoder, title in ENCODERS.items():
        found |= {f"{data}, {title}": rows for data, rows in runs(encoder).items() if SHUFFLED in rows}
    for place, measure in enumerate(("micro F1", "macro F1")):
        pairs = {data: paired(rows[OURS], rows[SHUFFLED], place) for data, rows in found.items()}
        for data, values in pairs.items():
            low, high = interval(values, 0.9)
            lines.append([data, measure, str(len(values)), *cells_of(mean(values), low, high, p_value(values))])
        weights = {data: len(values) / stdev(values) ** 2 for data, values in pairs.items()}
        centre = sum(weights[data] * mean(pairs[data]) for data in pairs) / sum(weights.values())
        error = sum(weights.values()) ** -0.5
        freedom = sum(len(values) - 1 for values in pairs.values())
        half = float(t.ppf(0.95, freedom)) * error
        p = float(2 * t.sf(abs(centre) / error, freedom))
        lines.append(["together", measure, "", *cells_of(centre, centre - half, centre + half, p)])
    head = ["tree − shuffled tree, test", "", "seeds", "difference", "90 % interval", "p", f"within ±{MARGIN}"]
    return table(head, lines)


def cells_of(centre: float, low: float, high: float, p: float) -> list[str]:
    """The cells of a difference; the 90 % interval inside the margin is a test of equivalence at 5 % (TOST)."""
    equal = "yes" if low > -MARGIN and high < MARGIN else "no"
    return [f"{centre:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{p:.2f}", equal]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def tables() -> str:
    """All tables of the page."""
    return f"{main_tables()}\n\n{shuffle_table()}"


def small_table(extra: list[list[str]]) -> str:
    """The rows of the README, and more rows."""
    found = runs()
    chosen = ("linear", "flat", "hgclr", "hill-paper", "flat-zlpr", OURS, SHUFFLED)
    lines = []
    for name in chosen:
        scores = [found[data].get(name) for data in ("wos", "attack")]
        cells = [of([s[k] for s in each.values()]) if each else "" for each in scores for k in (0, 1)]
        lines.append([TITLES[name], *cells])
    head = ["test, MiniLM, mean of 5 or 10 seeds", "wos: micro F1", "macro F1", "attack: micro F1", "macro F1"]
    return table(head, [*lines, *extra])


def draw(file: Path) -> None:
    """Draw the mean and its 95 % interval of every row."""
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "hill"
    found = runs()
    figure, axes = pyplot.subplots(len(found), 2, figsize=(10, 7.5), layout="constrained", squeeze=False)
    for line, (data, rows) in enumerate(found.items()):
        shown = [name for name in reversed(TITLES) if name in rows and len(rows[name]) > 2 and name != "linear"]
        for place, measure in enumerate(("micro F1", "macro F1")):
            axis = axes[line][place]
            for number, name in enumerate(shown):
                values = [scores[place] for scores in rows[name].values()]
                low, high = interval(values, 0.95)
                colour = "C1" if name.startswith("hill") else "C0" if name.startswith("flat") else "C7"
                axis.errorbar(mean(values), number, xerr=(high - low) / 2, fmt="o", color=colour, capsize=3)
            axis.set_yticks(range(len(shown)), [TITLES[name] for name in shown] if not place else [])
            axis.set_title(f"{data}, test, {measure}", fontsize=10)
            axis.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None})
