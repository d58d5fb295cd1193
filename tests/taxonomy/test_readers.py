"""All taxonomy formats as their publishers write them, and invalid files."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hill.errors import ConfigError, DataError, TaxonomyError
from hill.taxonomy import Label, Taxonomy, read_taxonomy, write_taxonomy

PETS = [
    Label("Animals", "Animals"),
    Label("Animals > Live Animals", "Live Animals", ("Animals",)),
    Label("Animals > Pet Supplies", "Pet Supplies", ("Animals",)),
    Label("Animals > Pet Supplies > Bird Supplies", "Bird Supplies", ("Animals > Pet Supplies",)),
    Label("Arts", "Arts"),
]
TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix ex: <http://example.org/> .
ex:zoo a skos:Concept ; skos:prefLabel "Zoology"@en, "Zoologie"@de ; skos:broader ex:bio ;
    skos:definition "The study of animals."@en .
ex:bio a skos:Concept ; skos:prefLabel "Biologie"@de, "Biology"@en-GB ; skos:narrower ex:bot .
ex:bot a skos:Concept ; skos:prefLabel "Botany" ; rdfs:label "ignored" .
ex:art a skos:Concept ; rdfs:label "Art"@fr, "Kunst"@de .
"""
RDF_XML = """<?xml version="1.0"?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:skos="http://www.w3.org/2004/02/skos/core#">
  <skos:Concept rdf:about="http://example.org/bio"><skos:prefLabel xml:lang="en">Biology</skos:prefLabel></skos:Concept>
  <skos:Concept rdf:about="http://example.org/zoo"><skos:prefLabel xml:lang="en">Zoology</skos:prefLabel>
    <skos:broader rdf:resource="http://example.org/bio"/></skos:Concept>
</rdf:RDF>
"""


def read(folder: Path, name: str, content: str | bytes) -> Taxonomy:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_taxonomy(path)


def ids_and_parents(taxonomy: Taxonomy) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(label.id, label.name, label.parents) for label in taxonomy]


def test_tables_with_a_header(tmp_path: Path) -> None:
    text = 'id\tparents\tname\tdescription\nb\ta|c\tB "quoted\tabout b\r\n\na\t\tA\t\nc\t\tC\t\n'
    expected = [Label("b", 'B "quoted', ("a", "c"), "about b"), Label("a", "A"), Label("c", "C")]
    assert list(read(tmp_path, "tax.tsv", text)) == expected
    assert list(read(tmp_path, "tax.txt", "\ufeff" + text)) == expected
    assert list(read(tmp_path, "utf16.tsv", text.encode("utf-16"))) == expected


def test_csv_tables(tmp_path: Path) -> None:
    text = 'Name,ID,Parent,code\n"Arts, Crafts",1,,x\n"Multi\nline",2,1,y\n'
    taxonomy = read(tmp_path, "tax.csv", text)
    assert list(taxonomy) == [Label("1", "Arts, Crafts"), Label("2", "Multi line", ("1",))]
    assert list(read(tmp_path, "tax", "id;name;parents\n1;A;\n2;B;1\n")) == [Label("1", "A"), Label("2", "B", ("1",))]
    assert list(read(tmp_path, "no_names.csv", "id,parents\n1,\n2,1\n")) == [Label("1", "1"), Label("2", "2", ("1",))]


def test_tables_without_a_header(tmp_path: Path) -> None:
    taxonomy = read(tmp_path, "tax.tsv", "x\t\t\ny\tx\tsubstance\nz\tx\tsubstance\n")
    assert list(taxonomy) == [Label("x", "x"), Label("y", "substance", ("x",)), Label("z", "substance", ("x",))]


def test_parent_child_lines(tmp_path: Path) -> None:
    text = "Root\tCCAT\tECAT\nCCAT\tC15\tC11\nC15\tC151\n"
    expected = [("CCAT", "CCAT", ()), ("ECAT", "ECAT", ()), ("C15", "C15", ("CCAT",)), ("C11", "C11", ("CCAT",))]
    expected.append(("C151", "C151", ("C15",)))
    for name in ("rcv1.taxonomy", "rcv1.txt", "rcv1.tsv"):
        assert ids_and_parents(read(tmp_path, name, text)) == expected
    without = read(tmp_path, "bare.taxonomy", "A\tB\tC\nB\tD\nC\tD\n")
    assert ids_and_parents(without) == [("B", "B", ("A",)), ("C", "C", ("A",)), ("A", "A", ()), ("D", "D", ("B", "C"))]


def test_parent_child_lines_whose_ids_are_paths_have_short_names(tmp_path: Path) -> None:
    text = "Root\tTop/News\tTop/Opinion\nTop/News\tTop/News/Sports\nTop/News/Sports\tTop/News/Sports/Golf\n"
    taxonomy = read(tmp_path, "nyt.taxonomy", text)
    assert [label.name for label in taxonomy] == ["News", "Opinion", "Sports", "Golf"]
    assert taxonomy.path_name(3) == "News > Sports > Golf"


def test_path_lists(tmp_path: Path) -> None:
    plain = "# Version: 1\n" + "\n".join(label.id for label in PETS) + "\n"
    assert list(read(tmp_path, "google.txt", plain)) == PETS
    leaves = "Animals > Live Animals\nAnimals > Pet Supplies > Bird Supplies\nArts\n"
    assert list(read(tmp_path, "leaves.txt", leaves)) == PETS, "parents without a line are added"
    later = read(tmp_path, "later.txt", "A > B\nA\n")
    assert [label.id for label in later] == ["A > B", "A"], "the order is the file's"
    assert [label.id for label in read(tmp_path, "flat.txt", "x\ny\n")] == ["x", "y"]


@pytest.mark.parametrize("form", ["{} - {}", "gid://shop/Category/{}     : {}"])
def test_path_lists_with_ids(tmp_path: Path, form: str) -> None:
    text = "\n".join(form.format(number, label.id) for number, label in enumerate(PETS, start=1))
    taxonomy = read(tmp_path, "paths.txt", text)
    prefix = form.split("{}")[0]
    assert [label.name for label in taxonomy] == [label.name for label in PETS]
    assert taxonomy[3].id == f"{prefix}4" and taxonomy[3].parents == (f"{prefix}3",)


def test_nested_json(tmp_path: Path) -> None:
    birds = {"name": "Bird Supplies"}
    node = {"name": "Animals", "children": ["Live Animals", {"name": "Pet Supplies", "children": [birds]}]}
    forms = [
        [node, {"name": "Arts", "children": []}],
        {"name": "Root", "children": [node, "Arts"]},
        {"Animals": {"Live Animals": {}, "Pet Supplies": ["Bird Supplies"]}, "Arts": None},
        {"root": {"Animals": {"Live Animals": [], "Pet Supplies": "Bird Supplies"}, "Arts": {}}},
    ]
    for form in forms:
        assert list(read(tmp_path, "tax.json", json.dumps(form))) == PETS


def test_json_with_ids_and_descriptions(tmp_path: Path) -> None:
    nested = {"id": 1, "name": "A", "description": "first", "children": [{"id": 2, "name": "B"}]}
    expected = [Label("1", "A", (), "first"), Label("2", "B", ("1",))]
    assert list(read(tmp_path, "tax.json", json.dumps(nested))) == expected
    flat = [{"id": 1, "name": "A", "description": "first", "parents": []}, {"id": 2, "name": "B", "parents": ["1"]}]
    assert list(read(tmp_path, "tax.json", json.dumps(flat))) == expected
    assert read(tmp_path, "tax.json", '[{"id": "x", "parents": null}]')[0].name == "x"


def test_json_lines(tmp_path: Path) -> None:
    text = '{"id": 1, "name": "A", "description": "first"}\n\n{"id": "2", "name": "B", "parents": ["1"]}\n'
    expected = [Label("1", "A", (), "first"), Label("2", "B", ("1",))]
    for name in ("tax.jsonl", "tax.json", "tax.txt"):
        assert list(read(tmp_path, name, text)) == expected
    assert list(read(tmp_path, "one.jsonl", '{"id": "x", "parents": []}')) == [Label("x", "x")]
    assert list(read(tmp_path, "word.jsonl", '{"id": 1, "name": "A"}\n{"ID": 2, "name": "B", "parent": "1"}')) == [
        Label("1", "A"),
        Label("2", "B", ("1",)),
    ]


@pytest.mark.parametrize(
    ("name", "header", "remedy"),
    [
        ("t.tsv", "label\ttitle\tparent_id", "'label' to 'id', 'title' to 'name', 'parent_id' to 'parents'"),
        ("t.txt", "label\ttitle\tparent_id", "'label' to 'id', 'title' to 'name', 'parent_id' to 'parents'"),
        ("t.csv", "Label,Parent", "'Label' to 'id'"),
        ("t.txt", "code;definition;broader", "'code' to 'id', 'definition' to 'description', 'broader' to 'parents'"),
        ("t.tsv", "id\tparnts\tnmae", "'parnts' to 'parents', 'nmae' to 'name'"),
        ("t.tsv", "id\tlabel", "'label' to 'name'"),
        ("t.csv", "id,name,parent_id", "'parent_id' to 'parents'"),
    ],
)
def test_an_unknown_header_names_its_columns_and_the_nearest(
    tmp_path: Path, name: str, header: str, remedy: str
) -> None:
    separator = next(character for character in "\t,;" if character in header)
    columns = header.split(separator)
    rows = [separator.join(cells[: len(columns)]) for cells in (["a", "A", ""], ["b", "B", "a"])]
    with pytest.raises(TaxonomyError) as caught:
        read(tmp_path, name, "\n".join([header, *rows]))
    message, found = str(caught.value), ", ".join(f"'{column}'" for column in columns)
    assert f"the header has the columns {found} (line 1 of {tmp_path / name})" in message
    assert "expected 'id' with 'parents' or 'name', and optionally 'description'" in message
    assert f"rename {remedy}" in message, message


@pytest.mark.parametrize("text", ["Root\tName\tPlaces\nName\tGiven\tFamily\n", "Title, first\nTitle, second > A\n"])
def test_labels_that_are_column_names_are_not_a_header(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, "t.txt", text).ids[0] in ("Name", "Title, first")


def test_skos(tmp_path: Path) -> None:
    taxonomy = read(tmp_path, "tax.ttl", TURTLE)
    base = "http://example.org/"
    assert list(taxonomy) == [
        Label(f"{base}zoo", "Zoology", (f"{base}bio",), "The study of animals."),
        Label(f"{base}bio", "Biology"),
        Label(f"{base}bot", "Botany", (f"{base}bio",)),
        Label(f"{base}art", "Kunst"),
    ]
    german = read_taxonomy(tmp_path / "tax.ttl", language="de")
    assert [label.name for label in german] == ["Zoologie", "Biologie", "Botany", "Kunst"]
    xml = read(tmp_path, "tax.rdf", RDF_XML)
    assert ids_and_parents(xml) == [(f"{base}bio", "Biology", ()), (f"{base}zoo", "Zoology", (f"{base}bio",))]


def test_a_missing_extra_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdflib", None)
    with pytest.raises(ConfigError, match=r"reading SKOS needs rdflib.*pip install 'rdflib>="):
        read(tmp_path, "tax.ttl", TURTLE)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)


@given(st.lists(st.tuples(names, names, st.text(st.characters(exclude_categories=["Cs"]), max_size=20)), max_size=20))
def test_the_json_form_keeps_everything(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, str, str]]
) -> None:
    unique = {label_id: (name, text) for label_id, name, text in parts}
    ids = list(unique)
    labels = [Label(key, *unique[key][:1], tuple(ids[:i][-2:]), unique[key][1].strip()) for i, key in enumerate(ids)]
    path = tmp_path_factory.mktemp("json") / "tax.json"
    write_taxonomy(Taxonomy(labels), path)
    if not labels:
        with pytest.raises(TaxonomyError, match="contains no labels"):
            read_taxonomy(path)
        return
    assert read_taxonomy(path).labels == tuple(labels)
    first = path.read_bytes()
    write_taxonomy(read_taxonomy(path), path)
    assert path.read_bytes() == first


def test_a_failed_write_leaves_no_file(tmp_path: Path, animals: Taxonomy) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="cannot write"):
        write_taxonomy(animals, tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


HEADER = "id\tparents\tname\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", HEADER + "a\tb\tA\nb\tc\tB\nc\ta\tC\n", r"'a' > 'c' > 'b' > 'a' \(line 2 of .*t\.tsv\)"),
        ("t.tsv", HEADER + "nlp\tcs\tNLP\n", r"label 'nlp' has parent 'cs', which is not in the taxonomy \(line 2 of"),
        ("t.tsv", HEADER + "a\t\tA\nb\t\tB\na\t\tC\n", r"'a' occurs twice \(line 4 of .*\), first \(line 2 of"),
        ("t.tsv", HEADER + "a\t\tA\nb\ta\tX\n\nc\ta\tX\n", r"'X' occurs twice under 'a': 'b' \(line 3 .* 'c' \(line 5"),
        ("t.tsv", HEADER + "a\t\tX\nb\t\tX\n", "'X' occurs twice among the roots"),
        ("t.tsv", HEADER + "a\t\t \n", r"the name of label 'a' is empty \(line 2 of"),
        ("t.tsv", HEADER + "\t\tA\n", r"the id is empty \(line 2 of"),
        ("t.tsv", HEADER + "a\ta\tA\n", r"label 'a' is its own parent \(line 2 of"),
        ("t.tsv", HEADER + "a\tA\n", r"2 columns \(line 2 of .*\); the header has 3 columns"),
        ("t.tsv", "a\t\tA\nb\ta\n", r"2 columns \(line 2 of .*\); line 1 has 3 columns"),
        ("t.csv", "id,name\n1\n", r"1 column \(line 2 of .*\); the header has 2 columns"),
        ("t.csv", 'id,name\n1,"a"b\n', r"this is not CSV: .* \(line 2 of"),
        ("t.tsv", HEADER, "contains no labels"),
        ("t.tsv", HEADER.encode() + b"a\t\t\xe9t\xe9\n", "not UTF-8 text: byte 0xe9 on line 2; save it as UTF-8"),
        ("t.tsv", "", "is empty"),
        ("t.tsv", " \n \n", "is empty"),
        ("t.tsv", b"id\tparents\n\x00\x01\x02", "is a binary file"),
        ("t.tsv", b"\x1f\x8b\x08rest", "is compressed, not text"),
        ("t.xlsx", b"PK\x03\x04rest", "is a zip archive or spreadsheet"),
        ("t.tsv", HEADER + "a\t\t" + "x" * 1_000_000 + "\n", r"is 1,000,000 characters long \(line 2 of"),
        ("t.txt", "x" * 1_000_000, "is 1,000,000 characters long"),
        ("t.taxonomy", "Root\tA\nB\tC\n", r"'B' has children but is not in the taxonomy \(line 2 of"),
        ("t.taxonomy", "Root\tA\tA\n", r"'A' occurs twice under 'Root' \(line 1 of"),
        ("t.taxonomy", "Root\tA\t\tB\n", r"an empty name \(line 1 of"),
        ("t.taxonomy", "Root\n", r"1 column, 'Root' \(line 1 of"),
        ("t.taxonomy", "Root\tA\nA\tB\nB\tA\n", "labels form a cycle"),
        ("t.txt", "A > > B\n", r"an empty name in 'A > > B' \(line 1 of"),
        ("t.txt", "A\nA > B\nA\n", r"'A' occurs twice \(line 3 of .*\), first \(line 1 of"),
        ("t.txt", "1 - A\n3 - A > B > C\n", r"is under 'A > B', which has no line \(line 2 of"),
        ("t.txt", "# nothing\n", "contains no labels"),
        ("t.json", "{", r"this is not JSON: .* \(line 1 of"),
        ("t.json", "[" * 100_000, "nested too deep"),
        (
            "t.jsonl",
            '{"id": "a", "name": "A"}\n["b"]\n',
            r"looks like JSON Lines, but a line is not an object with id, name and parents: \[\"b\"\] \(line 2 of",
        ),
        ("t.json", '{"id": "a", "name": "A"}\n{"id": \n', r"looks like JSON Lines, but .* \(line 2 of"),
        (
            "t.jsonl",
            '{"label": "a", "broader": []}\n',
            "the objects have the keys 'label', 'broader' .*rename 'label' to 'id', 'broader' to 'parents'",
        ),
        (
            "t.jsonl",
            '{"text": "a cat", "labels": ["cat"]}\n',
            r"the keys 'text', 'labels' \(line 1 of .*\); expected 'id' .*: these are documents, not labels",
        ),
        (
            "t.json",
            '[{"name": "A", "children": [{"name": ""}]}]',
            r"name of .* is empty \(at \$\[0\].children\[0\] of",
        ),
        (
            "t.json",
            '[{"name": "A", "children": [3]}]',
            r"expected an object, a list or a name, got 3 \(at \$\[0\].children\[0\]",
        ),
        ("t.json", '[{"name": ["A"]}]', r'expected text as name, got \["A"\] \(at \$\[0\] of'),
        ("t.json", '{"A": ["B", "B"]}', r"occurs twice \(at \$.A\[1\] of .*\), first \(at \$.A\[0\]"),
        ("t.json", '[{"id": "a", "parents": "b"}]', r'expected a list of ids as parents, got "b"'),
        ("t.json", '[{"id": "a", "parents": []}, 3]', "expected an object with id, name and parents, got 3"),
        ("t.json", '{"format": "hill-taxonomy", "version": 2}', "version 2; this program reads 1"),
        ("t.json", '{"format": "hill-taxonomy", "version": 1}', "expected a list of labels, got null"),
        ("t.json", "true", "expected an object, a list or a name, got true"),
        ("t.json", '"\\ud800"', "lone surrogate"),
        ("t.ttl", "@prefix x: <http://x/> .\nx:a x:b", "is not valid Turtle"),
        ("t.ttl", "@prefix x: <http://x/> .\nx:a x:b x:c .", "contains no skos:Concept"),
        ("t.ttl", TURTLE + "ex:new a skos:Concept .", r"no skos:prefLabel \(at concept http://example.org/new of"),
        ("t.xml", "<?xml version='1.0'?><rdf:RDF>", "is not valid RDF/XML"),
    ],
)
def test_invalid_files_raise_with_the_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(TaxonomyError, match=message):
        read(tmp_path, name, content)


def test_paths_that_are_not_files(tmp_path: Path) -> None:
    with pytest.raises(TaxonomyError, match="is a directory; give the taxonomy file inside it"):
        read_taxonomy(tmp_path)
    with pytest.raises(TaxonomyError, match="does not exist"):
        read_taxonomy(tmp_path / "none.tsv")
    with pytest.raises(TaxonomyError, match=r"cannot be read \(File name too long\)"):
        read_taxonomy(tmp_path / ("x" * 300))
