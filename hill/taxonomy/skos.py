"""SKOS thesauri in Turtle, N-Triples or RDF/XML: concepts, `broader`, `narrower`, and labels by language."""

import logging
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from hill.errors import TaxonomyError
from hill.extras import need
from hill.taxonomy.label import Label
from hill.taxonomy.source import Found, Source
from hill.taxonomy.taxonomy import Taxonomy

ENTITY = re.compile(r"""<!ENTITY\s+([\w.:-]+)\s+("[^"&%]*"|'[^'&%]*')\s*>""")
"""An entity that stands for plain text, such as the address that others begin with."""
GROWTH = 10
"""Times that a file may grow by what its entities stand for."""


def read_skos(source: Source, language: str) -> Taxonomy:
    """Concepts in the file's order, known by their addresses; names in the language asked for, else in another."""
    rdflib = need("rdflib", "skos", "reading SKOS")
    skos = rdflib.SKOS
    graph = _parse(source, rdflib)
    concepts = list(dict.fromkeys(graph.subjects(rdflib.RDF.type, skos.Concept)))
    if not concepts:
        raise TaxonomyError(f"'{source.path}' holds no skos:Concept; is it a SKOS thesaurus?")
    narrower: dict[Any, list[Any]] = {}
    for broad, narrow in graph.subject_objects(skos.narrower):
        narrower.setdefault(narrow, []).append(broad)
    found = []
    for concept in concepts:
        place = f"concept {concept}"
        name = _text(graph, concept, (skos.prefLabel, rdflib.RDFS.label), language)
        if not name:
            raise TaxonomyError(f"no skos:prefLabel{source.place(place)}; every concept needs one")
        broader = [*graph.objects(concept, skos.broader), *narrower.get(concept, [])]
        description = _text(graph, concept, (skos.definition, skos.scopeNote), language)
        parents = tuple(dict.fromkeys(str(parent) for parent in broader))
        found.append(Found(Label(str(concept), name, parents, description), place))
    return source.taxonomy(found, unique_names=False)


def _parse(source: Source, rdflib: Any) -> Any:
    xml = source.text.lstrip().startswith("<?xml") or "<rdf:RDF" in source.text[:2_000]
    if xml:
        _check_entities(source)
    logging.getLogger("rdflib").setLevel(logging.ERROR)
    try:
        return rdflib.Graph().parse(data=source.text, format="xml" if xml else "turtle")
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        kind = "RDF/XML" if xml else "Turtle"
        raise TaxonomyError(f"'{source.path}' is not valid {kind}: {reason}") from None


def _check_entities(source: Source) -> None:
    """Entities may name other files, and multiply each other without end: those that do are refused."""
    text = source.text
    plain: dict[str, str] = dict(ENTITY.findall(text))
    if text.count("<!ENTITY") != len(ENTITY.findall(text)):
        raise TaxonomyError(
            f"'{source.path}' declares an entity that is more than plain text, which is never read; "
            "write in full what it stands for"
        )
    uses = Counter(re.findall(r"&([\w.:-]+);", text)) if plain else Counter[str]()
    grown = sum(count * len(plain.get(name, "")) for name, count in uses.items())
    if grown > GROWTH * len(text):
        raise TaxonomyError(f"the entities of '{source.path}' stand for {grown:,} characters; write fewer, or in full")


def _text(graph: Any, concept: Any, properties: Iterable[Any], language: str) -> str:
    """The first text found: in the language, then without a language, then in the first of the others."""

    def rank(value: Any) -> tuple[int, str, str]:
        tag = (value.language or "").lower()
        wanted = tag == language.lower() or tag.startswith(f"{language.lower()}-")
        return (0 if wanted else 1 if not tag else 2, tag, str(value))

    for wanted in properties:
        texts = [value for value in graph.objects(concept, wanted) if hasattr(value, "language") and str(value).strip()]
        if texts:
            return " ".join(str(min(texts, key=rank)).split())
    return ""
