"""Valid files per reader, from which inputs are mutated."""

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

Files = dict[str, bytes]
"""The files of an input, by their names in its folder."""

TABLE = "id\tparents\tname\tdescription\na\t\tAnimals\t\nm\ta\tMammals\tFur.\nf\ta\tFlyers\t\nbat\tm|f\tBats é\tBoth.\n"
NESTED = [
    {"Animals": {"Mammals": ["Bats", "Cats"], "Birds": {}}, "Plants": None},
    {"name": "Root", "children": [{"name": "Animals", "id": 7, "children": [{"name": "Bats"}]}, {"name": "Plants"}]},
    [{"id": "a", "name": "A", "parents": []}, {"id": "b", "name": "B", "parents": ["a"], "description": "Beta."}],
    {"format": "hill-taxonomy", "version": 1, "labels": [{"id": "a", "name": "A", "parents": []}]},
]
TURTLE = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix x: <http://x.org/> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
x:a a skos:Concept ; skos:prefLabel "Animals"@en, "Tiere"@de ; skos:narrower x:b ; skos:notation "1"^^xsd:integer .
x:b a skos:Concept ; skos:prefLabel "Bats" ; skos:broader x:a ; skos:definition '''They
fly.'''@en .
[] a skos:Concept ; skos:prefLabel "Blank" .
"""
RDF = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE rdf:RDF [<!ENTITY x "http://x.org/">]>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:skos="http://www.w3.org/2004/02/skos/core#">
<skos:Concept rdf:about="&x;a"><skos:prefLabel xml:lang="en">Animals</skos:prefLabel></skos:Concept>
<rdf:Description rdf:about="&x;b"><rdf:type rdf:resource="http://www.w3.org/2004/02/skos/core#Concept"/>
<skos:prefLabel>Bats</skos:prefLabel><skos:broader rdf:resource="&x;a"/></rdf:Description>
</rdf:RDF>
"""
RECORDS = [
    {"id": "1", "text": "a bat in a cave", "labels": ["bat"]},
    {"text": "fur and milk", "labels": "Animals > Mammals"},
    {"id": 3, "text": "wings", "labels": ["f", ["Animals", "Mammals"]], "more": None},
    {"text": "none of them", "labels": []},
]
TSV = "id\ttext\tlabels\n1\ta bat\tbat\n2\tfur\tm|f\n"
CSV = 'id,text,labels\n1,"a bat, and ""more""",bat\n2,"two\nlines",m|f\n3,fur,"[""m"", ""a""]"\n'
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "application/vnd.openxmlformats-officedocument"
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
HEADER = ("Y1", "Y2", "Y", "Domain", "area", "keywords", "Abstract")


def taxonomies() -> dict[str, list[Files]]:
    """Taxonomies in every format that `read_taxonomy` reads."""
    return {
        "tsv": [{"t.tsv": TABLE.encode()}, {"t.tsv": b"a\t\tA\nb\ta\tB\n"}, {"t.tsv": b"id\tname\na\tA\n"}],
        "csv": [{"t.csv": TABLE.replace("\t", ",").encode()}, {"t.csv": b'id;name;parents\na;A;\nc;"C\nD";a\n'}],
        "edges": [
            {"t.taxonomy": b"Root\ta\tb\na\tc\td\nb\td\n"},
            {"t.txt": b"Top\tTop/News\nTop/News\tTop/News/Sports\n"},
        ],
        "paths": [{"t.txt": b"# list\nA\nA > B\nA > B > C\nD\n"}, {"t.txt": b"1 - A\n2 - A > B\n"}],
        "json": [{"t.json": json.dumps(document).encode()} for document in NESTED],
        "turtle": [{"t.ttl": TURTLE.encode()}],
        "rdf": [{"t.rdf": RDF.encode()}],
    }


def settings() -> list[Files]:
    """A TOML file, and the values of `--set`, one per line."""
    toml = '[model]\nheight = 3\nencoder = "minilm"\n[train]\nepochs = 2\nlr = 1e-3\n[decode]\nthreshold = 0.4\n'
    return [{"run.toml": toml.encode(), "set": b'train.epochs=3\ndata.max_length = 64\ndecode.strategy="path"\n'}]


def workbook(cells: list[list[str]], strings: list[str]) -> bytes:
    """A workbook of one sheet; a cell such as `#3` is a shared string."""
    rows = "".join(
        "<row>"
        + "".join(
            f'<c t="s"><v>{cell[1:]}</v></c>' if cell[:1] == "#" else f'<c t="inlineStr"><is><t>{cell}</t></is></c>'
            for cell in row
        )
        + "</row>"
        for row in cells
    )
    sheets = '<sheets><sheet name="A" sheetId="1" r:id="r1"/></sheets>'
    relation = f'<Relationship Id="r1" Type="{LINKS}/worksheet" Target="worksheets/sheet1.xml"/>'
    shared = "".join(f"<si><r><t>{text}</t></r></si>" for text in strings)
    parts = {"workbook": "sheet.main", "sharedStrings": "sharedStrings", "worksheets/sheet1": "worksheet"}
    types = "".join(
        f'<Override PartName="/xl/{part}.xml" ContentType="{OFFICE}.spreadsheetml.{kind}+xml"/>'
        for part, kind in parts.items()
    )
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">{types}</Types>',
            "xl/workbook.xml": f'<workbook xmlns="{SHEET}" xmlns:r="{LINKS}">{sheets}</workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{relation}</Relationships>',
            "xl/sharedStrings.xml": f'<sst xmlns="{SHEET}">{shared}</sst>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEET}"><sheetData>{rows}</sheetData></worksheet>',
        }
    )


def zipped(parts: Mapping[str, str | bytes]) -> bytes:
    """A zip archive without times, so that inputs are reproducible."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in parts.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def wos() -> list[Files]:
    """WOS as text and as a workbook."""
    rows = [["1", str(i % 3), "7", "D", f"area {i % 3}", "k", f"Abstract {i}"] for i in range(12)]
    text = "\n".join("\t".join(row) for row in [list(HEADER), *rows]) + "\n"
    book = workbook([list(HEADER), *([*row[:6], f"#{i}"] for i, row in enumerate(rows))], [row[6] for row in rows])
    return [{"Data.txt": text.encode()}, {"Data.xlsx": book}]


def written(write: Callable[[Path, str], object], form: str) -> Files:
    """The files that a function writes to a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), form)
        return folder_files(Path(folder))


def folder_files(folder: Path) -> Files:
    """All files below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
