"""The counts of a report, compared with slow and obvious counting."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.metrics import f1_score, precision_recall_fscore_support, precision_score, recall_score

from hill.data import Documents
from hill.decode import DecodeConfig
from hill.errors import ConfigError, DataError
from hill.predictor import Predictor, ScoredBatch
from hill.report import ErrorReport, make_report
from hill.report.counts import WORST
from hill.taxonomy import Label, Taxonomy
from tests.conftest import animals_taxonomy, random_taxonomy

Table = npt.NDArray[Any]


class Given(Predictor):
    """Returns given scores, in batches and in random order."""

    name = "given"

    def __init__(self, taxonomy: Taxonomy, scores: Table, config: DecodeConfig, batch: int = 7, seed: int = 0) -> None:
        self.taxonomy, self.decode_config, self.thresholds = taxonomy, config, None
        self._scores, self._batch, self._seed = scores.astype(np.float32), batch, seed

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        order = np.random.default_rng(self._seed).permutation(len(texts))
        for start in range(0, len(order), self._batch):
            part = order[start : start + self._batch]
            yield part, self._scores[part]


def documents_of(labels: Table) -> Documents:
    ids = [f"doc{number}" for number in range(len(labels))]
    return Documents(ids, [f"the text of {name}" for name in ids], csr_array(labels.astype(bool)), 0)


def report_of(
    taxonomy: Taxonomy, labels: Table, scores: Table, batch: int = 7, seed: int = 0, **config: Any
) -> dict[str, Any]:
    decoding = DecodeConfig(**({"strategy": "raw", "calibrate": "off"} | config))
    return make_report(Given(taxonomy, scores, decoding, batch, seed), documents_of(labels)).to_dict()


def test_the_report_says_which_thresholds_are_in_use() -> None:
    predictor = Given(animals_taxonomy(), np.eye(7), DecodeConfig(strategy="closure", calibrate="off"))
    given: dict[str, Any] = {
        "threshold 0.500,": None,
        "threshold 0.250,": np.full(7, 0.25),
        "thresholds from 0.100 to 0.900,": np.array([0.1, 0.5, 0.9, 0.5, 0.5, 0.5, 0.5]),
    }
    for message, predictor.thresholds in given.items():
        report = make_report(predictor, documents_of(np.eye(7)))
        assert message in report.html() and ("in use: " in report.html()) == ("from" not in message)


def test_the_report_says_what_tuning_chose() -> None:
    predictor = Given(animals_taxonomy(), np.eye(7), DecodeConfig(calibrate="off"))
    assert "Tuning on" not in make_report(predictor, documents_of(np.eye(7))).html()
    predictor.decode_note = "7 dev documents: too few to tune thresholds; scores above 0.5 are predicted"
    report = make_report(predictor, documents_of(np.eye(7)))
    assert report.to_dict()["model"]["decoding"] == predictor.decode_note
    assert f"calibration off. Tuning on {predictor.decode_note}.</p>" in report.html()


def up(taxonomy: Taxonomy, rows: set[int]) -> set[int]:
    """With all ancestors."""
    return rows | {above for row in rows for above in taxonomy.ancestors(row).tolist()}


def down(taxonomy: Taxonomy, row: int) -> set[int]:
    return set(taxonomy.descendants(row).tolist())


def ends(taxonomy: Taxonomy, closed: set[int]) -> set[int]:
    return {row for row in closed if not down(taxonomy, row) & closed}


def path_kind(taxonomy: Taxonomy, end: int, own: set[int], other: set[int]) -> tuple[str, int]:
    """The kind of a path of `own` compared with `other`, by definition, and the first wrong level."""
    strange, path = other - own, up(taxonomy, {end})
    if end in other:
        below = down(taxonomy, end) & other
        return ("more", min(int(taxonomy.depth[row]) for row in below)) if below else ("right", 0)
    first = min(int(taxonomy.depth[row]) for row in path - other)
    shared = path & other
    last = {row for row in shared if taxonomy.depth[row] == max(taxonomy.depth[list(shared)])}
    parents = set(taxonomy.parents(end).tolist())
    if any(parents & set(taxonomy.parents(row).tolist()) for row in strange):
        return "sibling", first
    if any(down(taxonomy, row) & strange for row in last):
        return "cousin", first
    if last & ends(taxonomy, other):
        return "less", first
    return ("far" if strange and not shared else "nothing"), first


def slow_paths(taxonomy: Taxonomy, gold: Table, chosen: Table) -> dict[str, Any]:
    found: dict[str, Any] = {"documents": Counter(), "gold": Counter(), "predicted": Counter()}
    names = {"gold": {"more": "deep", "less": "early"}, "predicted": {"more": "early", "less": "deep"}}
    for a, b in zip(gold, chosen, strict=True):
        own, other = (up(taxonomy, set(np.flatnonzero(mask).tolist())) for mask in (a, b))
        found["documents"][min((int(taxonomy.depth[row]) for row in own ^ other), default=0)] += 1
        for side, mine, theirs in (("gold", own, other), ("predicted", other, own)):
            for end in ends(taxonomy, mine):
                kind, level = path_kind(taxonomy, end, mine, theirs)
                found[side][names[side].get(kind, kind), level] += 1
    return found


def draw_case(seed: int, most_parents: int, documents: int = 25) -> tuple[Taxonomy, Table, Table]:
    """A taxonomy, closed gold labels, and scores some of which lie on thresholds; some label has no document."""
    draw = np.random.default_rng(seed)
    taxonomy = random_taxonomy(seed, n=14, roots=3, most_parents=most_parents)
    labels = draw.random((documents, 14)) < 0.12
    labels[:, 0] = False
    gold = taxonomy.closures(csr_array(labels)).toarray().astype(bool)
    scores = np.clip(gold * 0.4 + draw.random(gold.shape) * 0.6, 0, 1) ** draw.choice([1, 3])
    return taxonomy, gold, np.round(scores, 2)


def cases(test: Callable[[int, int], None]) -> Callable[[], None]:
    """Forests and DAGs, drawn from a seed."""
    return settings(max_examples=25)(given(st.integers(0, 10_000), st.integers(1, 3))(test))


@cases
def test_paths(seed: int, most_parents: int) -> None:
    taxonomy, gold, scores = draw_case(seed, most_parents)
    found = report_of(taxonomy, gold, scores)["paths"]
    wanted = slow_paths(taxonomy, gold, scores.astype(np.float32) > 0.5)
    assert found["documents"] == [wanted["documents"][level] for level in range(len(taxonomy.levels) + 1)]
    for side in ("gold", "predicted"):
        counted = {(kind, level): n for kind, row in found[side].items() for level, n in enumerate(row) if n}
        assert counted == dict(wanted[side])


@pytest.mark.parametrize(
    ("gold", "chosen", "of_gold", "of_predicted"),
    [
        (["bat"], ["bat"], ["right 0"], ["right 0"]),
        (["bat"], ["m"], ["early 2"], ["early 3"]),
        (["m"], ["bat"], ["deep 3"], ["deep 2"]),
        (["mo"], ["bat"], ["sibling 3"], ["sibling 2"]),
        (["mo"], ["fo"], ["cousin 2"], ["cousin 2"]),
        (["mo"], ["p"], ["far 1"], ["far 1"]),
        (["mo"], [], ["nothing 1"], []),
        (["p"], ["p", "mo"], ["right 0"], ["right 0", "nothing 1"]),
        (["mo", "fo"], ["mo"], ["right 0", "nothing 2"], ["right 0"]),
        (["mo"], ["m", "p"], ["early 3"], ["early 3", "far 1"]),
    ],
)
def test_kinds_by_example(gold: list[str], chosen: list[str], of_gold: list[str], of_predicted: list[str]) -> None:
    taxonomy = animals_taxonomy()
    rows = [taxonomy.closure(taxonomy.row(label) for label in labels) for labels in (gold, chosen)]
    tables = np.zeros((2, 1, len(taxonomy)))
    for table, places in zip(tables, rows, strict=True):
        table[0, places] = 1
    found = report_of(taxonomy, *tables)["paths"]
    for side, wanted in (("gold", of_gold), ("predicted", of_predicted)):
        told = [f"{kind} {level}" for kind, row in found[side].items() for level, n in enumerate(row) for _ in range(n)]
        assert sorted(told) == sorted(wanted)


@pytest.mark.parametrize("strategy", ["closure", "ancestors", "top-down", "safe", "raw"])
@pytest.mark.parametrize("abstain", [0.0, 0.6])
def test_threshold_curves(strategy: str, abstain: float) -> None:
    taxonomy, gold, scores = draw_case(3, 2, documents=60)
    decoding: dict[str, Any] = {"strategy": strategy, "abstain": abstain}
    found = report_of(taxonomy, gold, scores, **decoding)["thresholds"]
    assert found["threshold"] == [step / 100 for step in range(101)]
    for step in (0, 29, 50, 75):
        config = DecodeConfig(threshold=step / 100, calibrate="off", **decoding)
        chosen = Given(taxonomy, scores, config).decoder().decode(scores.astype(np.float32))
        closed = np.array([np.isin(np.arange(14), taxonomy.closure(np.flatnonzero(row))) for row in chosen])
        assert found["micro_f1"][step] == pytest.approx(f1_score(gold, chosen, average="micro", zero_division=0))
        assert found["macro_f1"][step] == pytest.approx(f1_score(gold, chosen, average="macro", zero_division=0))
        assert found["hierarchical_f1"][step] == pytest.approx(f1_score(gold, closed, average="micro", zero_division=0))
        assert found["precision"][step] == pytest.approx(
            precision_score(gold, chosen, average="micro", zero_division=0)
        )
        assert found["recall"][step] == pytest.approx(recall_score(gold, chosen, average="micro"))
        for level, rows in zip(found["levels"], taxonomy.levels, strict=True):
            hits, predicted, all_gold = ((mask[:, rows]).sum() for mask in (gold & chosen, chosen, gold))
            assert level["precision"][step] == pytest.approx(hits / max(predicted, 1))
            assert level["recall"][step] == pytest.approx(hits / max(all_gold, 1))


def test_the_curve_goes_through_the_metrics() -> None:
    taxonomy, gold, scores = draw_case(5, 2, documents=60)
    found = report_of(taxonomy, gold, scores, strategy="closure", threshold=0.37)
    for name in ("micro_f1", "macro_f1", "hierarchical_f1"):
        assert found["thresholds"][name][37] == pytest.approx(found["metrics"][name])


@cases
def test_reliability(seed: int, most_parents: int) -> None:
    taxonomy, gold, scores = draw_case(seed, most_parents)
    found = report_of(taxonomy, gold, scores, strategy="closure")
    bins: dict[int, list[tuple[float, bool]]] = {}
    for score, true in zip(scores.astype(np.float32).astype(float).ravel(), gold.ravel(), strict=True):
        bins.setdefault(max(math.ceil(score * 15 - 1e-9), 1), []).append((score, true))
    wanted = [
        {"pairs": len(pairs), "score": np.mean([s for s, _ in pairs]), "gold": np.mean([true for _, true in pairs])}
        for _, pairs in sorted(bins.items())
    ]
    assert len(found["reliability"]["before"]) == len(wanted)
    for one, other in zip(found["reliability"]["before"], wanted, strict=True):
        assert one == pytest.approx(other)
    after = found["reliability"]["after"]
    ece = sum(b["pairs"] * abs(b["score"] - b["gold"]) for b in after) / gold.size
    assert ece == pytest.approx(found["metrics"]["ece"])


@cases
def test_labels_and_their_siblings(seed: int, most_parents: int) -> None:
    taxonomy, gold, scores = draw_case(seed, most_parents)
    chosen = scores.astype(np.float32) > 0.5
    found = report_of(taxonomy, gold, scores)
    wanted = precision_recall_fscore_support(gold, chosen, zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "gold"), wanted, strict=True):
        assert [label[name] for label in found["labels"]] == pytest.approx(values)
    assert [label["predicted"] for label in found["labels"]] == chosen.sum(axis=0).tolist()
    parents = [set(taxonomy.parents(row).tolist()) for row in range(14)]
    counts = np.zeros((14, 14), dtype=int)
    for a, b in zip(gold, chosen, strict=True):
        for one in np.flatnonzero(a & ~b):
            for other in np.flatnonzero(b & ~a):
                counts[one, other] += bool(parents[one] & parents[other]) or not (parents[one] or parents[other])
    for label in found["worst"]:
        row = taxonomy.row(label["id"])
        for key, line in (("taken_for", counts[row]), ("taken_from", counts[:, row])):
            order = sorted(range(14), key=lambda other, line=line: (-line[other], other))[:3]  # type: ignore[misc]
            told = [(taxonomy.row(other["id"]), other["documents"]) for other in label[key]]
            assert told == [(other, line[other]) for other in order if line[other]]


def test_worst_labels_are_known_well_enough() -> None:
    labels = [Label(str(number), f"name {number}") for number in range(WORST + 2)]
    gold = np.zeros((40, len(labels)))
    for number in range(len(labels)):
        gold[: 9 + number, number] = 1
    scores = gold.copy()
    scores[0, 1:] = 0
    gold[:, 0], scores[:, 0] = 0, 0
    gold[:3, 0] = 1
    found = report_of(Taxonomy(labels), gold, scores)["worst"]
    assert [label["id"] for label in found] == [str(number) for number in range(1, WORST + 1)], (
        "label 0 has 3 documents"
    )
    found = report_of(Taxonomy(labels), gold, np.zeros(gold.shape))["worst"]
    assert [label["id"] for label in found] == [str(number) for number in range(WORST + 1, 1, -1)], "most gold first"
    gold[:, -3:] = scores[:, -3:] = 0
    found = report_of(Taxonomy(labels), gold, scores)["worst"]
    assert [label["id"] for label in found] == [str(number) for number in range(WORST - 1)], "0 is the worst"


@cases
def test_sizes(seed: int, most_parents: int) -> None:
    taxonomy, gold, scores = draw_case(seed, most_parents)
    found = report_of(taxonomy, gold, scores)["sizes"]
    for side, table in (("gold", gold), ("predicted", scores.astype(np.float32) > 0.5)):
        labels = Counter(int(row.sum()) for row in table)
        paths = Counter(len(ends(taxonomy, up(taxonomy, set(np.flatnonzero(row).tolist())))) for row in table)
        for what, wanted in (("labels", labels), ("paths", paths)):
            assert {n: count for n, count in enumerate(found[what][side]) if count} == dict(wanted)
            assert any(found[what][each][-1] for each in ("gold", "predicted"))


@cases
def test_most_confident_errors(seed: int, most_parents: int) -> None:
    taxonomy, gold, scores = draw_case(seed, most_parents)
    values = scores.astype(np.float32)
    found = report_of(taxonomy, gold, scores)["errors"]
    for kind, mask, sure in (("wrong", ~gold & (values > 0.5), values), ("missed", gold & (values <= 0.5), 1 - values)):
        best = []
        for document in range(len(gold)):
            rows = np.flatnonzero(mask[document])
            if len(rows):
                key = [(-sure[document, row], -taxonomy.depth[row], row) for row in rows]
                best.append((min(key)[0], document, min(key)[2]))
        wanted = [
            (f"doc{document}", taxonomy[row].id, float(values[document, row])) for _, document, row in sorted(best)[:10]
        ]
        assert [(error["document"], error["label"]["id"], error["score"]) for error in found[kind]] == wanted
        for error in found[kind]:
            document = int(error["document"][3:])
            assert error["text"] == f"the text of doc{document}" and not error["cut"]
            closed = set(np.flatnonzero(gold[document]).tolist())
            assert error["gold"] == [taxonomy.path_name(row) for row in sorted(ends(taxonomy, closed))]


@pytest.mark.parametrize("strategy", ["closure", "raw"])
def test_batches_change_nothing(strategy: str) -> None:
    taxonomy, gold, scores = draw_case(8, 3, documents=150)
    one = report_of(taxonomy, gold, scores, batch=150, seed=1, strategy=strategy)
    other = report_of(taxonomy, gold, scores, batch=4, seed=2, strategy=strategy)
    for part in ("labels", "paths", "worst", "errors", "sizes", "thresholds"):
        assert one[part] == other[part], part
    for key in ("before", "after"):
        for a, b in zip(one["reliability"][key], other["reliability"][key], strict=True):
            assert a == pytest.approx(b)


def test_a_perfect_and_an_empty_prediction() -> None:
    taxonomy, gold, _ = draw_case(2, 2)
    gold = gold[gold.any(axis=1)]
    perfect = report_of(taxonomy, gold, gold)
    assert perfect["worst"] == perfect["errors"]["wrong"] == perfect["errors"]["missed"] == []
    assert sum(map(sum, perfect["paths"]["gold"].values())) == sum(perfect["paths"]["gold"]["right"])
    empty = report_of(taxonomy, gold, np.zeros(gold.shape))
    assert sum(map(sum, empty["paths"]["predicted"].values())) == 0
    assert sum(empty["paths"]["gold"]["nothing"]) == sum(map(sum, empty["paths"]["gold"].values())) > 0
    assert ErrorReport(perfect).html() and ErrorReport(empty).html()


def test_no_torch_is_needed() -> None:
    program = "import sys, hill.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_invalid_input() -> None:
    taxonomy = animals_taxonomy()
    model = Given(taxonomy, np.zeros((0, 7)), DecodeConfig())
    with pytest.raises(DataError, match="there are no documents to report on; expected at least one"):
        make_report(model, documents_of(np.zeros((0, 7))))
    with pytest.raises(ConfigError, match="explained is -1"):
        make_report(model, documents_of(np.zeros((1, 7))), explained=-1)
