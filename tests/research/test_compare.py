"""`hill research compare`: paired bootstrap and approximate randomisation, against scikit-learn and slow loops."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.sparse import csr_array
from sklearn.metrics import f1_score

from hill.errors import CheckpointError, ConfigError, DataError
from hill.metrics import score
from hill.research import Predictions
from hill.research import compare as compare_module
from hill.research.compare import Pair, compare, compare_runs
from hill.taxonomy import Label, Taxonomy
from hill.types import BoolArray
from tests.command import hill
from tests.conftest import ROOT, animals_taxonomy

LABELS = len(animals_taxonomy())
PARENTS = [animals_taxonomy().parents(label).tolist() for label in range(LABELS)]


def draw_tables(documents: int, seed: int) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Gold labels, and those of two systems that hit them with different luck."""
    draw = np.random.default_rng(seed)
    gold = draw.random((documents, LABELS)) < 0.4
    a, b = (gold ^ (draw.random(gold.shape) < noise) for noise in (0.2, 0.25))
    return gold, a, b


def made(gold: BoolArray, chosen: BoolArray, ids: list[str] | None = None) -> Predictions:
    """Predictions that are the same at both thresholds."""
    tables = {name: csr_array(chosen) for name in ("raw", "tuned")}
    return Predictions(animals_taxonomy(), ids or [f"d{i}" for i in range(len(gold))], csr_array(gold), tables)


def slow_scores(gold: BoolArray, chosen: BoolArray) -> list[float]:
    """Micro and macro F1 from the counts of each label, and the hierarchical F1 from closed sets one by one."""
    hits, predicted, asked = 0, 0, 0

    def closed(row: Any) -> set[int]:
        found, queue = set(), [int(label) for label in np.flatnonzero(row)]
        while queue:
            label = queue.pop()
            found.add(label)
            queue += PARENTS[label]
        return found

    for own, guess in zip(gold, chosen, strict=True):
        mine, theirs = closed(own), closed(guess)
        hits, predicted, asked = hits + len(mine & theirs), predicted + len(theirs), asked + len(mine)
    found, total = (gold & chosen).sum(axis=0).tolist(), (gold.sum(axis=0) + chosen.sum(axis=0)).tolist()
    macro = sum(2 * hit / both if both else 0.0 for hit, both in zip(found, total, strict=True)) / LABELS
    return [2 * sum(found) / sum(total), macro, 2 * hits / (predicted + asked)]


def slow_difference(gold: BoolArray, a: BoolArray, b: BoolArray) -> list[float]:
    return [y - x for x, y in zip(slow_scores(gold, a), slow_scores(gold, b), strict=True)]


def test_scores_are_those_of_scikit_learn_and_of_the_metrics() -> None:
    gold, a, b = draw_tables(23, seed=1)
    observed = Pair(made(gold, a), made(gold, b), "tuned").observed()
    assert observed == pytest.approx(np.array([slow_scores(gold, a), slow_scores(gold, b)]))
    flat = [f1_score(gold, a, average=average, zero_division=0) for average in ("micro", "macro")]
    assert observed[0, :2] == pytest.approx(flat)
    whole = score(gold, a, None, animals_taxonomy())
    assert observed[0] == pytest.approx([whole[name] for name in ("micro_f1", "macro_f1", "hierarchical_f1")])


def test_a_resample_is_scored_as_documents_that_are_there_several_times() -> None:
    gold, a, b = draw_tables(12, seed=2)
    weights = np.random.default_rng(0).multinomial(12, [1 / 12] * 12, size=5).T
    found = Pair(made(gold, a), made(gold, b), "raw").weighted(weights)
    for place, column in enumerate(weights.T):
        places = np.repeat(np.arange(12), column)
        assert found[:, place] == pytest.approx(slow_difference(gold[places], a[places], b[places]))


def test_a_swap_is_scored_as_systems_that_changed_places() -> None:
    gold, a, b = draw_tables(12, seed=3)
    swaps = np.random.default_rng(0).integers(0, 2, size=(12, 5))
    found = Pair(made(gold, a), made(gold, b), "raw").swapped(swaps)
    for place, column in enumerate(swaps.T.astype(bool)):
        first, second = np.where(column[:, None], b, a), np.where(column[:, None], a, b)
        assert found[:, place] == pytest.approx(slow_difference(gold, first, second))


def test_randomisation_comes_near_the_exact_test() -> None:
    gold, a, b = draw_tables(7, seed=11)
    found = compare(made(gold, a), made(gold, b), resamples=20_000, seed=5)
    whole = np.abs(slow_difference(gold, a, b))
    reached = np.zeros(3)
    for mask in itertools.product([False, True], repeat=7):
        column = np.array(mask)[:, None]
        reached += np.abs(slow_difference(gold, np.where(column, b, a), np.where(column, a, b))) >= whole - 1e-12
    exact = reached / 2**7
    assert exact.min() > 0.05 and exact.max() < 0.95, "a case that tells"
    assert [of.p_randomisation for of in found] == pytest.approx(exact, abs=0.015)


def test_the_bootstrap_comes_near_a_slow_loop() -> None:
    gold, a, b = draw_tables(25, seed=22)
    found = compare(made(gold, a), made(gold, b), resamples=20_000)
    draw, drawn = np.random.default_rng(99), []
    for _ in range(1_500):
        places = draw.integers(0, 25, size=25)
        drawn.append(slow_difference(gold[places], a[places], b[places]))
    slow, observed = np.array(drawn), np.array(slow_difference(gold, a, b))
    p = (np.abs(slow - observed) >= np.abs(observed)).mean(axis=0)
    low, high = np.quantile(slow, [0.025, 0.975], axis=0)
    assert [of.difference for of in found] == pytest.approx(observed)
    assert p.min() > 0.02 and p.max() < 0.98, "a case that tells"
    assert [of.p_bootstrap for of in found] == pytest.approx(p, abs=0.04)
    assert [of.low for of in found] == pytest.approx(low, abs=0.02)
    assert [of.high for of in found] == pytest.approx(high, abs=0.02)


def test_the_same_system_is_no_different() -> None:
    gold, a, _ = draw_tables(30, seed=5)
    for of in compare(made(gold, a), made(gold, a), resamples=200):
        assert (of.difference, of.low, of.high, of.p_bootstrap, of.p_randomisation) == (0, 0, 0, 1, 1)


def test_a_system_that_is_right_differs_from_one_that_is_not() -> None:
    gold, a, _ = draw_tables(200, seed=6)
    for of in compare(made(gold, a), made(gold, gold), resamples=999):
        assert of.difference > 0 and of.low > 0 and of.b == 1
        assert of.p_bootstrap == of.p_randomisation == 1 / 1000, "p is never 0"
    for of in compare(made(gold, gold), made(gold, a), resamples=999):
        assert of.difference < 0 and of.high < 0 and of.p_randomisation == 1 / 1000


def test_differences_that_rounding_alone_tells_apart_are_equal() -> None:
    assert compare_module._p_values(np.array([[0.3, 0.3, 0.1]]), np.array([-0.1 * 3])) == 3 / 4


def test_a_seed_fixes_everything_however_much_is_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gold, a, b = draw_tables(40, seed=7)
    first, second = made(gold, a), made(gold, b)
    found = compare(first, second, resamples=300, seed=3)
    assert found == compare(first, second, resamples=300, seed=3) != compare(first, second, resamples=300, seed=4)
    monkeypatch.setattr(compare_module, "DRAW_BLOCK", 7 * 40)
    assert found == compare(first, second, resamples=300, seed=3)


def test_each_decoding_is_compared_by_itself() -> None:
    gold, a, b = draw_tables(10, seed=8)
    mixed = Predictions(
        animals_taxonomy(), made(gold, a).ids, csr_array(gold), {"raw": csr_array(a), "tuned": csr_array(b)}
    )
    assert compare(mixed, made(gold, a), "raw", 50)[0].difference == 0
    assert compare(mixed, made(gold, a), "tuned", 50)[0].difference != 0
    with pytest.raises(ConfigError, match="unknown decoding 'tune'; did you mean 'tuned'"):
        compare(mixed, mixed, "tune")
    with pytest.raises(ConfigError, match="--resamples is 0"):
        compare(mixed, mixed, resamples=0)


def test_runs_on_different_documents_are_refused() -> None:
    gold, a, b = draw_tables(10, seed=9)
    one = made(gold, a)
    with pytest.raises(DataError, match="number 2 is 'd2' or 'x'"):
        compare(one, made(gold, b, ["d0", "d1", "x", *(f"d{i}" for i in range(3, 10))]))
    with pytest.raises(DataError, match=r"different test documents \(10 and 9\)"):
        compare(one, made(gold[:9], b[:9]))
    with pytest.raises(DataError, match="different gold labels"):
        compare(one, made(~gold, b))
    other = Taxonomy([Label(label.id, label.name) for label in animals_taxonomy()])
    with pytest.raises(DataError, match="different taxonomies"):
        compare(one, Predictions(other, one.ids, one.gold, one.predicted))
    with pytest.raises(DataError, match="no test documents"):
        compare(made(gold[:0], a[:0]), made(gold[:0], a[:0]))


def write(folder: Path, predictions: Predictions) -> Path:
    folder.mkdir()
    save_file(predictions.arrays(), folder / "predictions.safetensors")
    return folder


def test_predictions_are_read_as_they_were_written(tmp_path: Path) -> None:
    gold, a, b = draw_tables(10, seed=10)
    gold[3] = a[3] = False
    written = made(gold, a, ["ä", '"', *(str(i) for i in range(8))])
    found = Predictions.read(write(tmp_path / "a", written))
    assert found.taxonomy.ids == written.taxonomy.ids and found.ids == written.ids
    assert (found.taxonomy.edge_array == written.taxonomy.edge_array).all()
    assert (found.gold.toarray() == gold).all() and (found.predicted["raw"].toarray() == a).all()
    by_file = compare_runs(
        tmp_path / "a" / "predictions.safetensors", write(tmp_path / "b", made(gold, b, found.ids)), "raw", 20, 0
    )
    assert by_file == compare(written, made(gold, b, found.ids), "raw", 20, 0)
    (tmp_path / "a" / "predictions.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match=r"predictions.safetensors' cannot be read"):
        Predictions.read(tmp_path / "a")
    with pytest.raises(CheckpointError, match="has no predictions; expected the folder of a run"):
        Predictions.read(tmp_path)


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    gold, a, b = draw_tables(15, seed=12)
    folders = write(tmp_path / "a", made(gold, a)), write(tmp_path / "b", made(gold, b))
    program = (
        "import sys; from hill.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "research", "compare", *map(str, folders), "--resamples", "100"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    found = json.loads(hill(*command[3:], "--json").stdout)
    assert found == [of.to_dict() for of in compare_runs(*folders, "tuned", 100, 0)]
    assert f"{100 * found[0]['a']:.2f}" in shown and "hierarchical_f1" in shown
