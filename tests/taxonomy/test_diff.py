"""Differences between two versions of a taxonomy."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from hill.taxonomy import Label, Taxonomy, write_taxonomy
from hill.taxonomy.diff import TaxonomyDiff, diff
from tests.command import hill
from tests.conftest import animals_taxonomy, random_taxonomy


def changed(*labels: Label, without: tuple[str, ...] = ()) -> Taxonomy:
    """The animals taxonomy with these labels replaced or appended, and some removed."""
    replacements = {label.id: label for label in labels}
    others = [replacements.pop(label.id, label) for label in animals_taxonomy() if label.id not in without]
    return Taxonomy([*others, *replacements.values()])


def ids(found: TaxonomyDiff, kind: str) -> list[tuple[str, str]]:
    return [(found.a[old].id, found.b[new].id) for old, new in getattr(found, kind)]


def test_nothing_changed_but_the_order(animals: Taxonomy) -> None:
    order = [3, 6, 0, 5, 1, 2, 4]
    found = diff(animals, Taxonomy([animals[row] for row in order]))
    assert found.unchanged and [order[new] for _, new in found.kept] == list(range(7))
    assert found.pairs.tolist() == found.kept.tolist()
    assert not diff(animals, changed(Label("x", "X"))).unchanged


def test_each_kind_of_change(animals: Taxonomy) -> None:
    found = diff(
        animals,
        changed(
            Label("bat", "Bats", ("m",), "Mammals with wings."),
            Label("f", "Flying animals", ("a",)),
            Label("m", "Mammals", ("a",), "They give milk."),
            Label("moss", "Mosses", ("p",)),
            without=("mo",),
        ),
    )
    assert ids(found, "moved") == [("bat", "bat")] and ids(found, "renamed") == [("f", "f")]
    assert ids(found, "described") == [("m", "m")]
    assert [found.b[row].id for row in found.added] == ["moss"] and [found.a[row].id for row in found.removed] == ["mo"]
    assert len(found.kept) == 6 and not len(found.recoded)


def test_a_label_with_a_removed_parent_and_a_new_root_have_moved(animals: Taxonomy) -> None:
    found = diff(animals, changed(Label("bat", "Bats", ("m",)), Label("fo", "Others"), without=("f",)))
    assert ids(found, "moved") == [("bat", "bat"), ("fo", "fo")]
    found = diff(animals, changed(Label("p", "Plants", ("a",))))
    assert ids(found, "moved") == [("p", "p")]


def test_a_label_with_the_same_name_and_parents_is_matched(animals: Taxonomy) -> None:
    codes = {"m": "M1", "bat": "B1", "mo": "O1"}
    labels = [
        Label(codes.get(label.id, label.id), label.name, tuple(codes.get(parent, parent) for parent in label.parents))
        for label in animals
    ]
    found = diff(animals, Taxonomy(labels[::-1]))
    assert ids(found, "recoded") == [("m", "M1"), ("bat", "B1"), ("mo", "O1")]
    assert not len(found.moved) and not len(found.added) and not len(found.removed)
    assert sorted(found.pairs[:, 1].tolist()) == list(range(7)) and found.pairs[:, 0].tolist() == list(range(7))


def test_a_name_alone_is_not_enough(animals: Taxonomy) -> None:
    elsewhere = diff(animals, changed(Label("x", "Others", ("p",)), without=("mo",)))
    assert not len(elsewhere.recoded) and len(elsewhere.added) == len(elsewhere.removed) == 1
    twice = Taxonomy([Label("a", "A"), Label("x", "Same", ("a",)), Label("y", "Same", ("a",))])
    once = Taxonomy([Label("a", "A"), Label("z", "Same", ("a",))])
    assert not len(diff(twice, once).recoded) and not len(diff(once, twice).recoded)


def slow_moved(a: Taxonomy, b: Taxonomy) -> list[str]:
    return [label.id for label in a if label.id in b and set(label.parents) != set(b[b.row(label.id)].parents)]


@pytest.mark.parametrize("seed", range(5))
def test_moved_labels_follow_the_definition(seed: int) -> None:
    a, b = (random_taxonomy(s, n=40, roots=3, most_parents=3) for s in (seed, seed + 100))
    drop = set(np.random.default_rng(seed).choice(40, 8, replace=False).tolist())
    left = {label.id for row, label in enumerate(b) if row not in drop}
    b = Taxonomy(
        [Label(each.id, each.name, tuple(p for p in each.parents if p in left)) for each in b if each.id in left]
    )
    found = diff(a, b)
    assert [old for old, _ in ids(found, "moved")] == slow_moved(a, b) and len(found.kept) == 32
    assert {a[row].id for row in found.removed} == {label.id for label in a} - left and not len(found.added)


def test_to_dict_names_labels(animals: Taxonomy) -> None:
    found = diff(animals, changed(Label("bat", "Vampires", ("m",)), Label("moss", "Mosses", ("p",)), without=("fo",)))
    document = json.loads(json.dumps(found.to_dict()))
    assert "splits" not in document and "merges" not in document
    assert document["labels"] == [7, 7] and document["kept"] == 6
    assert document["added"] == [{"id": "moss", "name": "Mosses", "parents": ["p"]}]
    assert document["removed"] == [{"id": "fo", "name": "Others", "parents": ["f"]}]
    assert document["moved"] == [{"id": "bat", "name": "Vampires", "from": ["m", "f"], "to": ["m"]}]
    assert document["renamed"] == [{"id": "bat", "from": "Bats", "to": "Vampires"}] and document["described"] == ["bat"]


def paths(*lines: str) -> Taxonomy:
    """A taxonomy of paths, whose ids are the paths."""
    steps = [tuple(line.split(" > ")) for line in lines]
    return Taxonomy(Label(" > ".join(s), s[-1], (" > ".join(s[:-1]),) if s[1:] else ()) for s in steps)


def test_labels_that_were_perhaps_renamed(tmp_path: Path) -> None:
    a = paths("A", "A > Phone Cases", "A > Phone Cases > Red", "A > Tea", "A > Screens", "B", "B > Lamps")
    b = paths("A", "A > Cases", "A > Cases > Red", "A > Coffee", "A > Screen Covers", "A > Screens 2", "B", "B > Xyz")
    found = [(each["from"], each["to"]) for each in diff(a, b).to_dict()["similar"]]
    assert found == [
        ("A > Phone Cases", "A > Cases"),
        ("A > Phone Cases > Red", "A > Cases > Red"),
        ("A > Screens", "A > Screens 2"),
    ], "the most similar sibling, also below such a pair; nothing else"
    assert len(diff(a, b).removed) == 5 and not len(diff(a, b).recoded), "it is a hint only"
    for name, taxonomy in (("a", a), ("b", b)):
        write_taxonomy(taxonomy, tmp_path / f"{name}.json")
    text = hill("taxonomy", "diff", tmp_path / "a.json", tmp_path / "b.json").stdout
    title = "3 of the removed and added perhaps renamed: similar names under the same parents"
    assert f"{title}\n  'A > Phone Cases' is perhaps now 'A > Cases'\n" in text
    assert not len(diff(a, a).similar)


def test_many_siblings_are_not_compared() -> None:
    a, b = (Taxonomy(Label(f"{name}{i}", f"{name} {i}") for i in range(200)) for name in ("same", "sama"))
    assert not len(diff(a, b).similar)


def test_many_labels_take_seconds() -> None:
    n, draw = 40_000, np.random.default_rng(0)
    labels = [Label(f"c{i}", f"name {i % 977}", (f"c{i // 12}",) if i > 11 else ()) for i in range(n)]
    other = [Label(f"d{i}" if i % 3 else label.id, f"{label.name} new" if i % 7 == 0 else label.name,
             tuple(f"d{i // 12}" if (i // 12) % 3 else parent for parent in label.parents))
             for i, label in enumerate(labels)]  # fmt: skip
    a, b = Taxonomy(labels), Taxonomy([other[i] for i in draw.permutation(n)])
    start = time.process_time()
    found = diff(a, b)
    assert time.process_time() - start < 30
    assert len(found.kept) == -(-n // 3) and len(found.recoded) > n // 10


def test_the_command_line(animals: Taxonomy, tmp_path: Path) -> None:
    later = changed(
        Label("bat", "Bats", ("m",)),
        Label("f", "Flying", ("a",)),
        Label("x", "X"),
        Label("P", "Plants"),
        without=("p",),
    )
    write_taxonomy(animals, tmp_path / "a.json")
    write_taxonomy(later, tmp_path / "b.json")
    command = ("taxonomy", "diff", tmp_path / "a.json", tmp_path / "b.json")
    text = hill(*command).stdout
    for line in (
        "7 labels before, 8 after, 6 with the same id",
        "1 moved to other parents\n  bat (Bats): from m and f to m",
        "1 with another name\n  f: 'Flyers' is now 'Flying'",
        "1 probably with another id\n  p is now P (Plants)",
        "1 added\n  x (X), a root",
        "1 with another description\n  bat",
    ):
        assert line in text, text
    assert json.loads(hill(*command, "--json").stdout) == diff(animals, later).to_dict()
    assert "and 1 more" in hill(*command, "--most", "0").stdout
