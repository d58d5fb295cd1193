"""Hypothesis strategies for each format, with valid and invalid content."""

import csv
import io
import json
import math
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz import seeds
from tests.fuzz.mutate import TOKENS, operated
from tests.fuzz.seeds import Files

EVERYTHING = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
ODD = st.sampled_from(TOKENS) | EVERYTHING
IDS = st.sampled_from(["a", "b", "c", "d", "Root", "A > B", "é", "e\u0301", "שלום", "👩‍👧", " a ", ""]) | ODD
FEW = {"max_size": 6}
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**30, 10**400, -(2**63), math.nan, 1e308])
PLAIN = (st.none() | st.booleans() | NUMBERS | ODD).map(lambda value: value)  # one alternative, not several


def _values(keys: SearchStrategy[str]) -> SearchStrategy[Any]:
    """JSON values; objects have these keys, among others."""
    return st.recursive(
        PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | ODD, inner, max_size=4), max_leaves=10
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _lines(cell: SearchStrategy[str], mark: str, min_size: int = 1) -> SearchStrategy[str]:
    row = st.lists(cell, min_size=min_size, max_size=5).map(mark.join)
    return st.lists(row, min_size=1, max_size=8).map("\n".join)


def _csv(rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, escapechar="\\")
    for row in rows:
        writer.writerow([cell.replace("\0", "") for cell in row])
    return _bytes(out.getvalue())


HEADS = st.permutations(["id", "parents", "name", "description"]).flatmap(
    lambda names: st.integers(1, 4).map(lambda count: names[:count])
) | st.lists(IDS, min_size=1, max_size=4)
ROWS = st.lists(st.lists(IDS, min_size=1, max_size=4), max_size=6)
LABEL = st.fixed_dictionaries(
    {"id": IDS, "parents": st.lists(IDS, max_size=2)}, optional={"name": IDS | PLAIN, "description": PLAIN}
)
KEYS = st.sampled_from(["name", "children", "id", "parents", "description", "format", "version", "labels"])


def taxonomies() -> dict[str, SearchStrategy[Files]]:
    """Taxonomies by format."""
    tsv = st.tuples(HEADS, ROWS).map(lambda parts: "\n".join("\t".join(row) for row in [parts[0], *parts[1]]))
    form = st.fixed_dictionaries(
        {"format": st.just("hill-taxonomy"), "version": st.sampled_from([1, 1, 2]), "labels": st.lists(LABEL, **FEW)}
    )
    documents = form | st.lists(LABEL, **FEW) | _values(KEYS)
    return {
        "tsv": tsv.map(lambda text: {"t.tsv": _bytes(text)}),
        "csv": st.tuples(HEADS, ROWS).map(lambda parts: {"t.csv": _csv([parts[0], *parts[1]])}),
        "edges": _lines(IDS, "\t").map(lambda text: {"t.taxonomy": _bytes(text)}),
        "paths": _lines(IDS, " > ").map(lambda text: {"t.txt": _bytes(text)}),
        "json": documents.map(lambda value: {"t.json": json.dumps(value).encode()}),
        "turtle": _triples().map(lambda text: {"t.ttl": _bytes(text)}),
        "rdf": _rdf().map(lambda text: {"t.rdf": _bytes(text)}),
    }


PREFIXES = "".join(line + "\n" for line in seeds.TURTLE.split("\n")[:3])
RESOURCES = st.sampled_from(["x:a", "x:b", "x:c", "_:n", "[]", "<http://x.org/d>", "<>", "<x y>", "()", "(x:a x:b)"])
LITERALS = st.builds(
    lambda text, tail: json.dumps(text, ensure_ascii=False) + tail,
    ODD,
    st.sampled_from(["", "@en", "@de", "@en-GB", "@1", "^^xsd:integer", "^^xsd:dateTime", "^^rdf:XMLLiteral", "^^x:y"]),
)
PROPERTIES = ["a", "skos:prefLabel", "skos:broader", "skos:narrower", "skos:definition", "skos:notation", "x:p"]


def _triples() -> SearchStrategy[str]:
    things = st.just("skos:Concept") | RESOURCES | LITERALS | PLAIN.map(str)
    triple = st.tuples(RESOURCES, st.sampled_from(PROPERTIES), things).map(" ".join)
    concept = RESOURCES.flatmap(lambda it: st.just(f'{it} a skos:Concept ; skos:prefLabel "{it}"'))
    return st.lists(triple | concept, max_size=8).map(lambda found: PREFIXES + "".join(f"{each} .\n" for each in found))


def _rdf() -> SearchStrategy[str]:
    head, _, _ = seeds.RDF.partition("<skos:Concept")
    addresses = st.sampled_from(["&x;a", "&x;b", "http://x.org/c", "#d", "", "&y;"]) | ODD
    about = st.builds(
        lambda kind, at: f'rdf:{kind}="{at}"', st.sampled_from(["about", "ID", "nodeID", "resource"]), addresses
    )
    name = ODD.map(lambda text: f"<skos:prefLabel>{text}</skos:prefLabel>")
    above = about.map(lambda at: f"<skos:broader {at}/>")
    inner = st.lists(name | above | ODD, max_size=4).map("".join)
    concept = st.builds(lambda at, within: f"<skos:Concept {at}>{within}</skos:Concept>\n", about, inner)
    return st.lists(concept, max_size=5).map(lambda found: head + "".join(found) + "</rdf:RDF>")


FIELDS = st.sampled_from(["text", "labels", "id", "label", "Text"])
LABELS = st.sampled_from(["a", "bat", "Mammals", "Animals > Mammals", "m|f", '["m"]', "[[[", "Animals >", ">"]) | PLAIN
RECORD = st.fixed_dictionaries(
    {
        "text": st.sampled_from(["fur", "wing"]) | PLAIN,
        "labels": LABELS | st.lists(LABELS | st.lists(LABELS), max_size=3),
    },
    optional={"id": PLAIN},
)


def data() -> dict[str, SearchStrategy[Files]]:
    """Documents, by format."""
    lines = st.lists((RECORD | _values(FIELDS)).map(json.dumps) | ODD, max_size=6).map("\n".join)
    heads = st.permutations(["text", "labels", "id"]).map(list) | st.lists(FIELDS | ODD, max_size=4)
    cells = st.sampled_from(["fur", "bat", "m|f", "x"]) | ODD
    rows = st.tuples(heads, st.lists(st.lists(cells, max_size=4), max_size=6))
    return {
        "jsonl": lines.map(lambda text: {"train.jsonl": _bytes(text)}),
        "csv": rows.map(lambda parts: {"train.csv": _csv([parts[0], *parts[1]])}),
        "tsv": rows.map(
            lambda parts: {"train.tsv": _bytes("\n".join("\t".join(row) for row in [parts[0], *parts[1]]))}
        ),
        "parquet": st.lists(RECORD, max_size=5).flatmap(_tables),
    }


def _tables(records: list[dict[str, Any]]) -> SearchStrategy[Files]:
    """Parquet tables whose columns have various types."""
    names = st.lists(st.sampled_from(["text", "labels", "id", "text", "more"]), min_size=1, max_size=4, unique=True)
    columns = st.sampled_from(
        [
            lambda at: [str(at)] * 3,
            lambda at: [["m"], [], None],
            lambda at: [at] * 3,
            lambda at: [b"\xff\xfe", None, b"a"],
            lambda at: [{"a": 1}] * 3,
            lambda at: [0.5, math.nan, None],
            lambda at: [None] * 3,
            lambda at: [[["a", "b"]], [["c"]], []],
            lambda at: ["", " ", "fur"],
        ]
    )
    given = {"text": ["fur", "wing", "cave"], "labels": [["m"], ["bat"], []]}
    drawn = names.flatmap(lambda chosen: st.tuples(*(st.tuples(st.just(name), columns) for name in chosen)))
    return drawn.map(lambda parts: _parquet(given | {name: make(place) for place, (name, make) in enumerate(parts)}))


def _parquet(columns: dict[str, list[Any]]) -> Files:
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return {"train.parquet": out.getvalue()}


def settings(known: list[str]) -> SearchStrategy[Files]:
    """A TOML file and assignments, with known and unknown settings."""
    names = st.sampled_from(known) | ODD
    value = PLAIN.map(_toml) | st.sampled_from(["[1, 2]", "{a = 1}", "'x'", "1979-05-27", "0xff", "inf", "nan", "x"])
    pairs = st.tuples(names, value)
    groups = st.sampled_from(["model", "train", "data", "decode"]) | ODD
    table = st.tuples(groups, st.lists(pairs.map(lambda pair: f"{pair[0].rpartition('.')[2]} = {pair[1]}"), max_size=4))
    toml = st.lists(table, max_size=4).map(lambda found: "".join(f"[{g}]\n" + "\n".join(v) + "\n" for g, v in found))
    assigned = st.lists(pairs.map("=".join) | ODD, max_size=4).map("\n".join)
    return st.tuples(toml, assigned).map(lambda parts: {"run.toml": _bytes(parts[0]), "set": _bytes(parts[1])})


def _toml(value: Any) -> str:
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


PATHS = [
    "/v1/predict",
    "/v1/projects/animals/suggest",
    "/v1/projects/animals/suggest-batch",
    "/v1/taxonomy",
    "/v1/models",
]
KINDS = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "text/plain", ""]
ASKED = st.sampled_from(
    ["text", "texts", "model", "strategy", "threshold", "top_k", "explain", "documents", "document_id"]
)


def requests() -> SearchStrategy[Files]:
    """HTTP requests: a request line, headers and a body."""
    usual = st.fixed_dictionaries(
        {"text": st.sampled_from(["fur", "cave echo"]) | PLAIN},
        optional={
            "strategy": st.sampled_from(["path", "raw", "auto"]) | PLAIN,
            "threshold": NUMBERS | PLAIN,
            "top_k": NUMBERS | PLAIN,
            "explain": st.booleans() | st.lists(st.sampled_from(["bat", "m", "x"]), max_size=3) | PLAIN,
            "model": st.just("animals") | PLAIN,
        },
    )
    body = (usual | usual | _values(ASKED)).map(json.dumps) | ODD
    query = st.sampled_from(
        ["", "?limit=3", "?search=b", "?parent=m", "?offset=-1", "?limit=%00", "?threshold=nan", "?a=%ff"]
    )
    path = st.sampled_from([*PATHS, "/v1/predict", "/v1/labels/bat", "/v1/model", "/", "/metrics", "/docs"]) | ODD.map(
        "/{}".format
    )
    method = st.sampled_from(["POST", "POST", "POST", "GET", "PUT", "HEAD", "OPTIONS"])
    parts = st.tuples(method, path, query, st.sampled_from(["application/json", *KINDS]), body)
    return parts.map(lambda p: {"request": _bytes(f"{p[0]} {p[1]}{p[2]}\ncontent-type: {p[3]}\n\n{p[4]}")})


def operations(folders: list[Files]) -> SearchStrategy[Files]:
    """Folders in which one value of one JSON document is replaced."""
    choices = [(files, name) for files in folders for name in files if name.endswith(".json")]

    def operate(choice: tuple[Files, str], value: Any, seed: int) -> Files:
        files, name = choice
        return files | {name: json.dumps(operated(json.loads(files[name]), Random(seed), value)).encode()}

    return st.builds(operate, st.sampled_from(choices), _values(KEYS), st.integers(0, 2**32))
