"""Lines of `parent<TAB>child<TAB>child…`, as the research codes for WOS, RCV1 and NYT keep their taxonomies."""

from hill.errors import TaxonomyError
from hill.taxonomy.label import Label
from hill.taxonomy.source import Found, Source
from hill.taxonomy.taxonomy import Taxonomy


def read_edges(source: Source) -> Taxonomy:
    """Labels in the order they first appear as a child; a `Root` line lists the roots and is no label itself."""
    parents: dict[str, dict[str, None]] = {}
    first: dict[str, int] = {}
    heads: dict[str, int] = {}
    for line, text in source.lines():
        head, *children = (cell.strip() for cell in text.split("\t"))
        _check_cells(source, line, head, children)
        heads.setdefault(head, line)
        for child in children:
            if head in parents.setdefault(child, {}):
                raise TaxonomyError(f"'{child}' stands twice under '{head}'{source.place(line)}; remove one")
            parents[child][head] = None
            first.setdefault(child, line)
    root = next((head for head in heads if head.casefold() == "root" and head not in parents), None)
    for head, line in heads.items():
        if head != root and head not in parents:
            if root:
                raise TaxonomyError(
                    f"'{head}' has children but is not in the taxonomy{source.place(line)}; "
                    f"list it under its parent or on the '{root}' line"
                )
            parents[head], first[head] = {}, line
    order = sorted(parents, key=lambda label: first[label])
    names = _short_names(parents, root)
    found = [Label(label, names[label], tuple(p for p in parents[label] if p != root)) for label in order]
    return source.taxonomy([Found(label, first[label.id]) for label in found])


def _check_cells(source: Source, line: int, head: str, children: list[str]) -> None:
    if not head or not all(children):
        raise TaxonomyError(f"an empty name{source.place(line)}; each line is a parent and its children, tab between")
    if not children:
        raise TaxonomyError(
            f"1 column, '{head[:40]}'{source.place(line)}; expected a parent and its children with tabs between them"
        )


def _short_names(parents: dict[str, dict[str, None]], root: str | None) -> dict[str, str]:
    """Where every label extends its parent's id by a slash (`Top/News/Sports`), the last part; else the id."""
    extends = all(
        label.startswith(f"{parent}/") for label, above in parents.items() for parent in above if parent != root
    )
    return {label: label.rsplit("/", 1)[-1] if extends else label for label in parents}
