"""Preparing the research data sets: what the three share, and what their own tests use."""

import gzip
import io
import json
import lzma
import tarfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hill.data import read_data
from hill.data.check import check
from hill.errors import ConfigError, DataError
from hill.research.datasets import Prepared, Spool, prepare
from hill.taxonomy import Taxonomy, read_taxonomy

Records = dict[str, list[tuple[str, str, list[str]]]]


def read_back(out: Path) -> tuple[Records, Taxonomy]:
    """The lines of each split as they stand, after the package's own readers have accepted them as closed."""
    taxonomy = read_taxonomy(out / "taxonomy.json")
    assert sorted(path.name for path in out.iterdir()) == ["dev.jsonl", "taxonomy.json", "test.jsonl", "train.jsonl"]
    assert check(out, taxonomy).fit
    assert [documents.added for documents in read_data(out, taxonomy).values()] == [0, 0, 0]
    splits: Records = {}
    for split in ("train", "dev", "test"):
        lines = [json.loads(line) for line in (out / f"{split}.jsonl").read_text("utf-8").splitlines()]
        splits[split] = [(line["id"], line["text"], line["labels"]) for line in lines]
    return splits, taxonomy


def run(name: str, source: Path) -> Prepared:
    return prepare(name, source, source / "out")


def fails(name: str, source: Path, match: str) -> None:
    """The error has these words, and nothing is left of the work."""
    before = sorted(source.rglob("*"))
    with pytest.raises(DataError, match=match):
        run(name, source)
    assert sorted(source.rglob("*")) == before


def write_stories(source: Path, stories: dict[str, bytes], archive: Path | None) -> None:
    """The stories as files, or in an archive after a link to the first of them."""
    if archive:
        pack = lzma.LZMAFile if archive.suffix == ".xz" else partial(gzip.GzipFile, mtime=0)
        with pack(archive, mode="w") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            link = tarfile.TarInfo("elsewhere/" + next(iter(stories)).rpartition("/")[2])
            link.type, link.linkname = tarfile.SYMTYPE, next(iter(stories))
            tar.addfile(link)
            for name, content in stories.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    else:
        for name, content in stories.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)


def write_wos(source: Path) -> None:
    """The least that can be prepared."""
    rows = [f"1\t{i % 3}\t7\tD\tarea {i % 3}\tk\tAbstract {i}\n" for i in range(10)]
    (source / "Data.txt").write_text("Y1\tY2\tY\tDomain\tarea\tkeywords\tAbstract\n" + "".join(rows))


def test_an_unknown_name_and_a_missing_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown data set 'rcv2'; did you mean 'rcv1'\?"):
        prepare("rcv2", tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"unknown data set 'dbpedia'; expected wos, rcv1, nyt$"):
        prepare("dbpedia", tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="gone' is not a folder; give the folder with the files of the original"):
        prepare("wos", tmp_path / "gone", tmp_path / "out")


def test_an_empty_folder_is_used_and_a_full_one_is_refused(tmp_path: Path) -> None:
    write_wos(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    run("wos", tmp_path)
    read_back(out)
    fails("wos", tmp_path, "out' exists and is not empty; give a new folder, or remove this one")
    read_back(out)
    with pytest.raises(DataError, match=r"Data.txt' exists and is not empty"):
        prepare("wos", tmp_path, tmp_path / "Data.txt")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    write_wos(tmp_path)
    with pytest.raises(DataError, match=r"cannot prepare wos in '.*': .*Data.txt"):
        prepare("wos", tmp_path, tmp_path / "Data.txt" / "deep" / "out")


def test_folders_above_are_made(tmp_path: Path) -> None:
    write_wos(tmp_path)
    prepare("wos", tmp_path, tmp_path / "deep" / "er" / "out")
    read_back(tmp_path / "deep" / "er" / "out")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_a_spool_keeps_texts(texts: list[str]) -> None:
    with Spool() as spool:
        assert [spool.append(text) for text in texts] == list(range(len(texts)))
        assert [spool[i] for i in reversed(range(len(spool)))] == texts[::-1]
        assert spool.append("again") == len(texts) and spool[len(texts)] == "again"
