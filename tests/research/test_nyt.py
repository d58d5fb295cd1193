"""NYT, from small files in exactly the formats of the original distribution."""

from pathlib import Path

import pytest

from hill.research.datasets import Prepared
from tests.research.test_prepare import fails, read_back, run, write_stories

NYT_TAXONOMY = (
    "Root\tTop/Features\tTop/Opinion\tTop/News\nTop/News\tTop/News/Sports\tTop/News/World\n"
    "Top/News/World\tTop/News/World/Africa\nTop/Features\tTop/Features/Books\n"
)
LABELS = ["Top/Features", "Top/Opinion", "Top/News", "Top/News/Sports", "Top/News/World", "Top/News/World/Africa"]
LABELS += ["Top/Features/Books"]
AFRICA = ["Top/News", "Top/News/World", "Top/News/World/Africa"]


def nitf(paragraphs: list[str], classifiers: list[str]) -> bytes:
    """A story as the Linguistic Data Consortium ships it."""
    paths = "".join(
        f'<classifier class="online_producer" type="taxonomic_classifier">{path}</classifier>\n' for path in classifiers
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE nitf SYSTEM "http://www.nitf.org/nitf-3-3.dtd">\n'
        '<nitf version="-//IPTC//DTD NITF 3.3//EN">\n<head><title>T</title><docdata><identified-content>\n'
        f'<classifier class="indexing_service" type="descriptor">Top/News/Sports</classifier>\n{paths}'
        "</identified-content></docdata></head>\n<body><body.head><hedline><hl1>H</hl1></hedline></body.head>\n"
        '<body.content><block class="full_text">\n'
        + "".join(f"<p>{paragraph}</p>\n" for paragraph in paragraphs)
        + "</block></body.content></body>\n</nitf>\n"
    ).encode()


NYT_STORIES = {
    "2003/1": nitf(["Lead", "One caf&eacute;.", "Ünd"], ["Top/News/World/Africa", "Top/News"]),
    "2003/2": nitf(["Lead", "Two."], ["Top/News/World/Africa/Chad", "Top/Features/Travel/Books"]),
    "2003/3": nitf(["Only a lead"], ["Top/Features/Books"]),
    "2004/4": nitf(["Lead", "Four."], ["Top/News/Sports", "Top/News/World", "Top/News/Sports"]),
    "2004/5": nitf(["Lead", "Five."], ["Top/Opinion", "Top/News"]),
    "2004/6": nitf(["Lead", "Six."], ["Top/Features/Books"]),
}
NYT_LISTS = {"train": "3 1 2 2", "val": "4 5 1 4", "test": "6 2 5 6"}


def write_nyt(source: Path, form: str) -> None:
    (source / "nyt.taxonomy").write_text(NYT_TAXONOMY)
    (source / "nyt_label.vocab").write_text("\n".join(["Root", *LABELS]) + "\n")
    year = {name.split("/")[1]: name.split("/")[0] for name in NYT_STORIES}
    for split, numbers in NYT_LISTS.items():
        lines = "".join(f"Nytimes/{year[number]}/{number}.xml\n" for number in numbers.split())
        (source / f"idnewnyt_{split}.json").write_text(lines)
    if form == "flat":
        write_stories(source, {f"Nytimes/{name}.xml": content for name, content in NYT_STORIES.items()}, None)
    elif form == "nested":
        stories = {f"data/{name[:4]}/01/31{name[4:]}.xml": content for name, content in NYT_STORIES.items()}
        write_stories(source, stories, None)
    else:
        for month in ("2003", "2004"):
            (source / "data" / month).mkdir(parents=True)
            stories = {f"01/02/{n[5:]}.xml": content for n, content in NYT_STORIES.items() if n.startswith(month)}
            write_stories(source, stories, source / "data" / month / "01.tgz")


@pytest.mark.parametrize("form", ["flat", "nested", "tgz"])
def test_nyt_from_every_form(tmp_path: Path, form: str) -> None:
    write_nyt(tmp_path, form)
    prepared = run("nyt", tmp_path)
    splits, taxonomy = read_back(tmp_path / "out")
    one, two = ("1", "one café.ünd", AFRICA), ("2", "two.", [*AFRICA, "Top/Features"])
    four, five = ("4", "four.", ["Top/News", "Top/News/Sports", "Top/News/World"]), ("5", "five.", [])
    six = ("6", "six.", ["Top/Features", "Top/Features/Books"])
    assert splits == {"train": [one, two, two, one, two], "dev": [four, five, four, five], "test": [six, six]}
    assert taxonomy.ids == [*AFRICA, "Top/Features", "Top/News/Sports", "Top/Features/Books", "Top/Opinion"]
    assert [label.name for label in taxonomy][:3] == ["News", "World", "Africa"]
    assert prepared == Prepared(
        {"train": 5, "dev": 4, "test": 2},
        7,
        [
            "1 repeated line in the list of train",
            "1 repeated line in the list of dev",
            "1 repeated line in the list of test",
            "1 line of the list of dev moved to train, whose list has the story too",
            "1 line of the list of test moved to train, whose list has the story too",
            "1 line of the list of test moved to dev, whose list has the story too",
            "1 story without text left out",
            "1 story without labels",
            "paragraphs but the first are joined with nothing between them, as in the research code",
        ],
    )


def test_nyt_labels_that_the_vocabulary_lacks_are_added_above_those_it_has(tmp_path: Path) -> None:
    write_nyt(tmp_path, "flat")
    (tmp_path / "nyt_label.vocab").write_text("Root\nTop/News/World/Africa\nTop/Features\n")
    run("nyt", tmp_path)
    splits, _ = read_back(tmp_path / "out")
    assert sorted(splits["train"][0][2]) == AFRICA and splits["dev"][0][2] == []


def test_nyt_archives_that_are_damaged(tmp_path: Path) -> None:
    write_nyt(tmp_path, "tgz")
    whole = (tmp_path / "data" / "2004" / "01.tgz").read_bytes()
    (tmp_path / "data" / "2004" / "01.tgz").write_bytes(whole[:60] + b"damage" + whole[66:])
    fails("nyt", tmp_path, r"the archive '.*2004/01.tgz' cannot be read further")


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("idnewnyt_val.json", '["Nytimes/2003/1.xml"]', "on line 1 of '.*idnewnyt_val.json'; expected .*1469939.xml"),
        (
            "idnewnyt_val.json",
            "Nytimes/2003/7.xml\nNytimes/2003/8.xml",
            r"2 of 7 stories are not below .*'7.xml'; .*LDC2008",
        ),
        ("nyt_label.vocab", "Root\nTop/Weather\n", "label 'Top/Weather' on line 2 of '.*' is not in the taxonomy"),
        (
            "Nytimes/2003/1.xml",
            "<nitf>&nothing;</nitf>",
            "Nytimes/2003/1.xml' is not well-formed XML: undefined entity",
        ),
    ],
)
def test_nyt_refuses(tmp_path: Path, file: str, content: str, match: str) -> None:
    write_nyt(tmp_path, "flat")
    (tmp_path / file).write_text(content)
    fails("nyt", tmp_path, match)


@pytest.mark.parametrize("name", ["nyt.taxonomy", "nyt_label.vocab", "idnewnyt_train.json", "idnewnyt_test.json"])
def test_nyt_names_the_missing_file(tmp_path: Path, name: str) -> None:
    write_nyt(tmp_path, "flat")
    (tmp_path / name).unlink()
    fails("nyt", tmp_path, f"none of '.*{name}'.* exists; get it from the repositories of HILL and HGCLR")
