"""`hill research`: rows and their settings, finished and resumed runs, statistics, tables and figures."""

import json
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from sklearn.metrics import f1_score
from typer.testing import CliRunner

from hill.classifier import HillClassifier
from hill.cli.common import app
from hill.data.documents import label_documents
from hill.errors import CheckpointError, ConfigError, DataError, HillError
from hill.metrics import score
from hill.research import Predictions
from hill.research import runs as runs_module
from hill.research.rows import DIFFERENCES, TABLES, ExperimentRow, reference_row, rows_folder, share_trees, table_rows
from hill.research.runs import (
    Clock,
    DatasetInfo,
    Extra,
    Run,
    RunPlan,
    count_parameters,
    execute_run,
    measure,
    read_seeds,
    read_source,
)
from hill.research.tables import Page, Results, Section, Summary, draw, html, markdown, run_experiment, summarise
from hill.taxonomy import Taxonomy, write_taxonomy
from hill.train import Epoch, Step
from hill.train.trainer import StageProgress
from hill.tree import build_tree
from tests.conftest import ROOT, animals_taxonomy, toy_documents

SETTINGS = ROOT / "hill" / "research" / "settings"
PUBLISHED = sorted(SETTINGS.glob("*/*.toml"))
FOLDERS = sorted({file.parent for file in PUBLISHED})
HILL = """
[model]
name = "hill"
height = 2
[train]
epochs = 3
batch_size = 16
encoder_lr = 5e-3
lr = 5e-3
[data]
max_length = 16
[decode]
strategy = "raw"
tune = "off"
"""
ROWS = ("hill", "hill-no-contrast")


def write_data(folder: Path, dev: bool = True) -> Path:
    folder.mkdir()
    for name, count, seed in (("train", 60, 1), ("dev", 20, 2), ("test", 30, 3)):
        if name != "dev" or dev:
            pairs = zip(*toy_documents(count, seed), strict=True)
            records = [json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in pairs]
            (folder / f"{name}.jsonl").write_text("".join(records))
    write_taxonomy(animals_taxonomy(), folder / "taxonomy.json")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "hill.toml").write_text(HILL)
    return folder


class Counted:
    """Counts the executed runs and how often test is read, and can stop before a run."""

    def __init__(self, test: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[str] = []
        self.test_reads = 0
        self.stop_before: int | None = None
        scores = HillClassifier.scores

        def counted_scores(classifier: HillClassifier, texts: Any) -> Any:
            self.test_reads += list(texts) == test
            return scores(classifier, texts)

        def counted_run(run: Run, source: DatasetInfo, extra: Extra) -> Iterator[Any]:
            if len(self.runs) == self.stop_before:
                raise KeyboardInterrupt
            self.runs.append(run.folder.name)
            yield from execute_run(run, source, extra)

        monkeypatch.setattr(HillClassifier, "scores", counted_scores)
        monkeypatch.setattr(runs_module, "execute_run", counted_run)


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, data: Path, rows: Path, tiny_encoder: Path
) -> Iterator[tuple[Path, Page, Counted]]:
    """Two rows with two seeds, stopped after the first run and started again."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as monkeypatch:
        counted = Counted(toy_documents(30, 3)[0], monkeypatch)
        counted.stop_before = 1
        with pytest.raises(KeyboardInterrupt):
            ablation(data, out, rows, tiny_encoder)
        assert [folder.name for folder in (out / "runs").iterdir()] == ["hill-1"]
        counted.stop_before = None
        yield out, ablation(data, out, rows, tiny_encoder), counted


def ablation(data: Path, out: Path, rows: Path, encoder: Path, **more: Any) -> Page:
    settings = {"encoder": str(encoder), "seeds": "2", "rows": rows, "only": ROWS, **more}
    return run_experiment("ablation", data, out, **settings)


def record(out: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "runs" / run / "run.json").read_text())
    return found


# Rows


def test_every_published_file_is_a_row() -> None:
    assert {folder.name for folder in FOLDERS} == {"wos", "rcv1", "nyt", "arxiv", "attack", "icd"}
    for file in PUBLISHED:
        assert file.stem in DIFFERENCES, f"{file} is no row of any table"
    assert all((folder / "hill.toml").exists() for folder in FOLDERS)


@pytest.mark.parametrize("folder", [*FOLDERS, None], ids=lambda folder: folder.name if folder else "defaults")
@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_every_table_resolves(table: str, folder: Path | None) -> None:
    found = table_rows(table, folder)
    assert [row.name for row in found] == list(TABLES[table])
    assert reference_row(table, found) is not None
    for row in found:
        HillClassifier(animals_taxonomy(), row.model, row.settings, preset=None).settings()
        assert row.settings["decode"]["strategy"] == "closure" and row.settings["decode"]["tune"] == "global"


def test_tables_have_the_rows_of_the_paper() -> None:
    main = {row.name: row.model for row in table_rows("main-table", None)}
    assert main == {
        "linear": "linear",
        "textrcnn": "textrcnn",
        "hiagm-rcnn": "hiagm",
        "htcinfomax-rcnn": "htcinfomax",
        "himatch-rcnn": "himatch",
        "flat": "flat",
        "hiagm": "hiagm",
        "htcinfomax": "htcinfomax",
        "himatch": "himatch",
        "hgclr": "hgclr",
        "hitin": "hitin",
        "flat-conditional": "flat",
        "hill": "hill",
    }
    assert [row.settings["model"]["text"] for row in table_rows("main-table", None)].count("rcnn") == 4
    changed = {"structure": ["gin", "gat", "gcn"], "contrast": [0.0], "height": [1]}
    _, *ablations = table_rows("ablation", SETTINGS / "wos")
    assert [
        row.settings["model"][key]
        for row, key in zip(ablations, ["structure"] * 3 + ["contrast", "height"], strict=True)
    ] == [value for values in changed.values() for value in values]
    assert [row.settings["model"]["height"] for row in table_rows("heights", None)] == [1, 2, 3, 4, 5, 6]


def test_the_open_questions_of_the_paper_are_rows() -> None:
    rows = {row.name: row for row in table_rows("questions", SETTINGS / "arxiv")}
    small, own = rows["hill-rcnn"], rows["hill"]
    assert (small.model, small.settings["model"]["text"]) == ("hill", "rcnn")
    assert small.settings["train"] == rows["textrcnn"].settings["train"]
    assert own.settings["model"]["text"] == "transformer"


@pytest.mark.parametrize(
    ("name", "batch", "rate", "height", "weight", "pooling"),
    [("wos", 24, 1e-3, 3, 0.001, "sum"), ("rcv1", 16, 1e-4, 2, 0.1, "mean"), ("nyt", 24, 1e-4, 3, 0.3, "sum")],
)
def test_hill_has_the_settings_of_the_paper(
    name: str, batch: int, rate: float, height: int, weight: float, pooling: str
) -> None:
    settings = {row.name: row.settings for row in table_rows("ablation", SETTINGS / name)}["hill"]
    model, train = settings["model"], settings["train"]
    assert (train["batch_size"], train["lr"], model["height"]) == (batch, rate, height)
    assert (model["contrast"], model["readout"], model["hidden"]) == (weight, pooling, 768)
    assert (train["encoder_lr"], train["warmup"], train["schedule"], train["patience"]) == (3e-5, 2000, "constant", 10)


@pytest.mark.parametrize("data", ["wos", "arxiv"])
def test_cost_follows_the_timing_protocol(data: str) -> None:
    for row in table_rows("cost", SETTINGS / data):
        train, model = row.settings["train"], row.settings["model"]
        assert (train["batch_size"], train["epochs"], train["warmup"], train["schedule"]) == (16, 20, 0, "constant")
        assert train["lr"] == train["encoder_lr"] == 3e-5 and train["patience"] >= 20 and not train["classifier_lr"]
        assert not model.get("leaf_units") and not model.get("name_weight") and model["contrast"] == 0.1
    assert row.model == "hgclr" and row.settings["model"]["layers"] == 2


def test_a_row_is_derived_from_the_nearest_file(tmp_path: Path) -> None:
    (tmp_path / "hill.toml").write_text(
        HILL.replace("height = 2", 'text = "transformer"\nheight = 2\ncontrast = 0.7\ndropout = 0.3')
    )
    (tmp_path / "textrcnn.toml").write_text('[model]\nfilters = 7\n[train]\nlr = 0.5\n[decode]\nstrategy = "path"\n')
    found = {row.name: row.settings for table in ("main-table", "ablation") for row in table_rows(table, tmp_path)}
    assert found["hill-gin"]["model"] == {**found["hill"]["model"], "structure": "gin"}
    assert found["hgclr"]["model"]["dropout"] == 0.3 and found["hgclr"]["model"]["contrast"] == 0.1, "λ is another here"
    assert found["hitin"]["model"]["height"] == 2 and found["hitin"]["train"]["epochs"] == 3
    assert found["hiagm-rcnn"]["model"]["filters"] == 7 and found["hiagm-rcnn"]["train"]["lr"] == 0.5
    assert found["hiagm-rcnn"]["decode"] == {**found["hill"]["decode"], "strategy": "path"}
    (tmp_path / "textrcnn.toml").unlink()
    assert table_rows("main-table", tmp_path)[1].settings["model"]["text"] == "rcnn", "HILL's kind of text is not its"
    assert found["hiagm"]["model"]["filters"] == 100 and found["hiagm"]["train"]["lr"] == 5e-3


def test_settings_for_all_rows_do_not_override_what_defines_a_row(rows: Path) -> None:
    given = ["model.contrast=0.5", "model.height=4", "train.epochs=9", "model.vectors=w.txt"]
    found = {row.name: row.settings for row in table_rows("main-table", rows, "x", given)}
    found |= {row.name: row.settings for row in table_rows("ablation", rows, "x", given[:3])}
    assert found["hill"]["model"]["contrast"] == 0.5 and found["hill-no-contrast"]["model"]["contrast"] == 0
    assert found["hill-gcn"]["model"]["height"] == 4 and found["hill-height-1"]["model"]["height"] == 1
    assert {settings["train"]["epochs"] for settings in found.values()} == {9}
    assert found["hiagm-rcnn"]["model"]["vectors"] == "w.txt" and "vectors" not in found["flat"]["model"]
    assert {name for name, row in found.items() if row["model"]["encoder"] == "x"} == {
        name for name, row in found.items() if row["model"]["text"] == "transformer"
    }
    with pytest.raises(ConfigError, match="unknown setting of model 'hieght'; did you mean 'height'"):
        table_rows("ablation", rows, None, ["model.hieght=2"])
    with pytest.raises(ConfigError, match="did you mean 'ablation'"):
        table_rows("ablations", rows)


def test_hill_at_its_own_height_is_not_trained_twice(rows: Path) -> None:
    found = table_rows("heights", rows)
    assert [row.run for row in found if row.run == "hill"] == ["hill"] and found[1].run == "hill"
    assert reference_row("heights", found) == "hill-height-2"
    assert reference_row("heights", table_rows("heights", rows, None, ["model.method=refined"])) == "hill-height-2"
    plan = RunPlan([*found, *table_rows("ablation", rows)], [1, 2], Path("out"))
    names = [run.folder.name for run in plan.runs()]
    assert len(names) == len(set(names)) == 2 * (6 + 4), "hill and hill-height-1 are in both tables"
    assert [run.folder.name for run in plan.runs(["hill-height-2"])] == ["hill-1", "hill-2"]
    with pytest.raises(ConfigError, match="unknown row 'hil'"):
        plan.runs(["hil"])


def test_a_builder_that_gives_the_tree_of_hill_is_not_trained_again(rows: Path, animals: Taxonomy) -> None:
    given = table_rows("trees", rows)
    trees = {row.name: build_tree(animals, 2, row.settings["model"]["method"]).tree for row in given}
    (own,) = (row for row in given if row.run == "hill")
    assert 1 < sum(tree == trees[own.name] for tree in trees.values()) < len(trees), "only some builders give it"
    for before, row in zip(given, share_trees(given, animals), strict=True):
        if trees[row.name] == trees[own.name]:
            assert row.run == "hill" and row.settings == own.settings
            assert row.title == (before.title if before is own else f"{before.title} = {own.title}")
        else:
            assert row == before
    for other in ("heights", "ablation", "main-table"):
        assert share_trees(table_rows(other, rows), animals) == table_rows(other, rows)


def test_the_settings_folder_has_the_name_of_the_data_folder(tmp_path: Path) -> None:
    assert rows_folder(tmp_path / "arxiv") == SETTINGS / "arxiv"
    assert rows_folder(tmp_path / "mine") is None and rows_folder(tmp_path / "arxiv", tmp_path) == tmp_path
    with pytest.raises(ConfigError, match=r"none' is not a folder"):
        rows_folder(tmp_path, tmp_path / "none")


def test_seeds() -> None:
    assert read_seeds("2") == [1, 2] and read_seeds("9,4") == [9, 4] and read_seeds("7,") == [7]
    for wrong in ("0", "x", "1,1", ","):
        with pytest.raises(ConfigError, match=f"--seeds is '{wrong}'"):
            read_seeds(wrong)


# Runs


def test_finished_runs_are_kept_and_test_is_read_once_per_run(done: tuple[Path, Page, Counted]) -> None:
    out, page, counted = done
    assert counted.runs == ["hill-1", "hill-no-contrast-1", "hill-2", "hill-no-contrast-2"]
    assert counted.test_reads == 4 and page.failed == []
    assert sorted(folder.name for folder in (out / "runs").iterdir()) == sorted(counted.runs)


def test_the_same_again_runs_nothing(
    done: tuple[Path, Page, Counted], data: Path, rows: Path, tiny_encoder: Path
) -> None:
    out, page, counted = done
    before = len(counted.runs), counted.test_reads
    again = ablation(data, out, rows, tiny_encoder)
    assert (len(counted.runs), counted.test_reads) == before and again.text == page.text


def test_a_record_contains_no_paths_of_this_machine(done: tuple[Path, Page, Counted], data: Path) -> None:
    out, _, _ = done
    found = record(out, "hill-no-contrast-2")
    assert found["seed"] == found["config"]["train"]["seed"] == 2 and found["config"]["model"]["name"] == "hill"
    assert found["config"]["model"]["contrast"] == 0 and found["config"]["train"]["epochs"] == 3
    assert found["data"]["documents"] == {"train": 60, "dev": 20, "test": 30}
    assert found["versions"]["torch"] == torch.__version__ and found["peak_memory"] is None
    assert len(found["seconds"]["epochs"]) == 3 == len(found["dev_curve"])
    assert found["seconds"]["epoch"] == pytest.approx(statistics.mean(found["seconds"]["epochs"]))
    assert sum(found["seconds"]["epochs"]) < found["seconds"]["training"]
    for split in ("dev", "test"):
        for decoding in ("raw", "tuned"):
            assert {"micro_f1", "hierarchical_f1", "path_macro_f1", "violations"} <= set(found[split][decoding])
            assert {"tail_macro_f1", "ndcg_at_3", "ece"} <= set(found[split][decoding])
    text = (out / "runs" / "hill-no-contrast-2" / "run.json").read_text()
    assert str(data.parent) not in text and str(ROOT) not in text and '"/' not in text
    files = {file.name for file in (out / "runs" / "hill-no-contrast-2").iterdir()}
    assert files == {"run.json", "predictions.safetensors", "files.json"}, "no weights"


def test_metrics_are_those_of_the_predictions(done: tuple[Path, Page, Counted], data: Path) -> None:
    out, _, _ = done
    found, predictions = record(out, "hill-1"), Predictions.read(out / "runs" / "hill-1")
    gold = label_documents(*toy_documents(30, 3), animals_taxonomy()).labels.toarray()
    assert (predictions.gold.toarray() == gold).all() and predictions.ids == [str(i) for i in range(30)]
    for decoding in ("raw", "tuned"):
        chosen = predictions.predicted[decoding].toarray()
        for average in ("micro", "macro"):
            expected = f1_score(gold, chosen, average=average, zero_division=0)
            assert found["test"][decoding][f"{average}_f1"] == pytest.approx(expected)
        whole = score(gold, chosen, None, predictions.taxonomy)
        assert found["test"][decoding]["hierarchical_f1"] == pytest.approx(whole["hierarchical_f1"])
    assert found["test"]["tuned"]["violations"] == 0


def test_raw_is_above_one_half_and_tuned_is_at_the_threshold_of_dev(animals: Taxonomy) -> None:
    documents = label_documents(["x y", "y"], [["bat"], ["p"]], animals)
    scores = np.array([[0.4, 0.5, 0.2, 0.6, 0.1, 0.1, 0.3], [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.35]], dtype=np.float32)
    classifier: Any = SimpleNamespace(
        taxonomy=animals,
        decoder=HillClassifier(animals, settings={"decode": {"threshold": 0.32}}, preset=None).decoder,
        scores=lambda texts: iter([(np.array([1]), scores[1:]), (np.array([0]), scores[:1])]),
    )
    kept = np.zeros((2, 7), dtype=np.float16)
    found, predictions = measure(classifier, documents, documents, kept)
    assert np.abs(kept - scores).max() < 1e-3
    assert predictions.predicted["raw"].toarray().tolist() == [[0, 0, 0, 1, 0, 0, 0], [0] * 7]
    assert predictions.predicted["tuned"].toarray().tolist() == [[1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1]]
    assert found["raw"]["violations"] == 0.5 and found["tuned"]["subset_accuracy"] == 1


def test_a_killed_run_resumes_with_the_same_result(
    done: tuple[Path, Page, Counted], data: Path, rows: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    row, *_ = table_rows("ablation", rows, str(tiny_encoder), ["train.checkpoint_seconds=0"])
    run, source = Run(row, 1, tmp_path / "runs" / "hill-1"), read_source(data, None)
    steps = 0
    for report in execute_run(run, source, Extra()):
        steps += isinstance(report, Step)
        if steps == 6:
            break
    assert run.record() is None and run.scratch.is_dir()
    resumed = [report for report in execute_run(run, source, Extra()) if isinstance(report, Step)]
    assert resumed[0].step > 1 and not run.scratch.exists()
    found, whole = run.record() or {}, record(done[0], "hill-1")
    assert found["test"] == whole["test"] and found["dev_curve"] == whole["dev_curve"]
    assert len(found["seconds"]["epochs"]) == 2, "the interrupted epoch has no time"


def test_the_peak_of_memory_is_that_of_training_steps(
    data: Path, rows: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, *_ = table_rows("ablation", rows, str(tiny_encoder), ["train.epochs=2"])
    run, calls, peaks = Run(row, 1, tmp_path / "hill-1"), [], iter([5, 3])
    monkeypatch.setattr(runs_module, "_reset_peak", lambda: calls.append("reset"))
    monkeypatch.setattr(runs_module, "_peak", lambda: calls.append("read") or next(peaks))
    list(execute_run(run, read_source(data, None), Extra()))
    assert calls == ["reset", "read", "reset", "read", "reset"]
    assert (run.record() or {})["peak_memory"] == 5


def test_other_settings_or_other_data_are_refused(
    done: tuple[Path, Page, Counted], data: Path, rows: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    out, _, counted = done
    before = len(counted.runs)
    with pytest.raises(CheckpointError, match=r"hill-1' was made with train.epochs = 3, not 4; choose another --out"):
        ablation(data, out, rows, tiny_encoder, assignments=["train.epochs=4"])
    other = write_data(tmp_path / "toy")
    (other / "test.jsonl").write_text((data / "test.jsonl").read_text().replace("leaf", "bark", 1))
    with pytest.raises(CheckpointError, match="hill-1' was made from other data"):
        ablation(other, out, rows, tiny_encoder)
    assert len(counted.runs) == before


def test_training_settings_are_ignored_by_models_fitted_in_closed_form(data: Path, rows: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seeds": "1", "rows": rows, "only": ["linear"]}
    run_experiment("main-table", data, tmp_path, **settings, assignments=["model.min_count=1"])
    written = (tmp_path / "runs" / "linear-1" / "run.json").stat().st_mtime_ns
    run_experiment("main-table", data, tmp_path, **settings, assignments=["model.min_count=1", "train.epochs=9"])
    assert (tmp_path / "runs" / "linear-1" / "run.json").stat().st_mtime_ns == written
    with pytest.raises(CheckpointError, match=r"linear-1' was made with model.min_count = 1, not 2"):
        run_experiment("main-table", data, tmp_path, **settings, assignments=["model.min_count=2"])


def test_a_run_that_fails_does_not_stop_the_others(
    data: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_encoder: Path
) -> None:
    def failing(run: Run, source: DatasetInfo, extra: Extra) -> Iterator[Any]:
        if run.row.name == "hill":
            raise HillError("dev micro_f1 is nan")
        yield from execute_run(run, source, extra)

    monkeypatch.setattr(runs_module, "execute_run", failing)
    extra = Extra(tmp_path / "models", tmp_path / "scores")
    page = ablation(data, tmp_path, rows, tiny_encoder, seeds="1", extra=extra)
    assert page.failed == ["hill-1"] and "| HILL | 0 | – |" in page.text
    assert "| r.m. L\\_clr | 1 | " in page.text
    model = HillClassifier.load(tmp_path / "models" / "hill-no-contrast-1")
    assert model.settings()["model"]["contrast"] == 0 and not (tmp_path / "models" / "hill-1").exists()
    test = read_source(data, None).documents["test"]
    arrays = np.load(tmp_path / "scores" / "hill-no-contrast-1.npz")
    assert (arrays["test_labels"] == test.labels.toarray()).all() and arrays["dev_scores"].any()
    for documents, scores in model.scores(test.texts):
        assert np.abs(arrays["test_scores"][documents] - scores).max() < 1e-3


def test_without_dev_a_share_of_train_is_held_out(tmp_path: Path, rows: Path, tiny_encoder: Path) -> None:
    data = write_data(tmp_path / "toy", dev=False)
    row = table_rows("main-table", rows, None, ["data.dev_share=0.2"])[0]
    run = Run(row, 1, tmp_path / "linear-1")
    assert row.model == "linear" and list(execute_run(run, read_source(data, None), Extra()))
    found = run.record() or {}
    assert found["data"]["documents"] == {"train": 60, "test": 30} and found["dev"]["raw"]["documents"] == 12
    assert found["seconds"]["epoch"] is None and found["seconds"]["training"] > 0


def test_an_experiment_needs_train_test_and_a_taxonomy(tmp_path: Path) -> None:
    data = write_data(tmp_path / "toy")
    (data / "test.jsonl").unlink()
    with pytest.raises(DataError, match="has no test documents"):
        read_source(data, None)
    (data / "taxonomy.tsv").write_text("")
    with pytest.raises(DataError, match=r"found 'taxonomy.json', 'taxonomy.tsv'; name it with --taxonomy"):
        read_source(data, None)


def test_the_commit_is_recorded_only_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "CHECKOUT", tmp_path)
    assert runs_module._commit() == {}
    (tmp_path / ".git").mkdir()
    assert runs_module._commit() == {}, "no repository"
    words = ["-c", "user.name=x", "-c", "user.email=x", "commit", "--allow-empty", "-qm", "x"]
    for command in (["init", "-q"], words):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    found = runs_module._commit()
    assert len(found["commit"]) == 40 and found["changed"] is False


def test_the_command(
    done: tuple[Path, Page, Counted], data: Path, rows: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    out, page, _ = done
    words = ["research", "ablation", "--data", data, "--out", out, "--rows", rows, "--encoder", tiny_encoder]
    words += [word for row in ROWS for word in ("--only", row)]
    result = CliRunner().invoke(app, [*map(str, words), "--seeds", "2"])
    assert result.exit_code == 0 and result.stdout.startswith(page.text)
    assert str(out / "ablation" / "report.html") in result.stdout
    for message, more in {
        "`hill experiment TABLE` is now `hill research TABLE`": ["experiment", "ablation", "--data", data],
        "`hill data prepare` is now `hill research prepare`": ["data", "prepare", "wos", "--source", tmp_path],
        "--seeds is 'none'": [*words, "--seeds", "none"],
        "unknown row 'hil'": [*words, "--only", "hil"],
    }.items():
        found = CliRunner().invoke(app, [*map(str, more)])
        assert isinstance(found.exception, ConfigError) and message in str(found.exception)


def test_weights_outside_the_text_encoder_are_counted_as_in_the_paper() -> None:
    model = torch.nn.ModuleDict(
        {"text": torch.nn.Linear(2, 3), "head": torch.nn.Linear(4, 5), "view": torch.nn.Linear(1, 1)}
    )
    assert count_parameters(model) == {"text": 9, "rest": 27}


def test_the_clock_leaves_out_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("hill.research.runs.time.perf_counter", lambda: now)

    def update(clock: Clock, event: Any, after: float) -> None:
        nonlocal now
        now += after
        clock.update(event)

    def step(number: int) -> Step:
        return Step(number, 6, (number - 1) // 2, 1, 0.0, torch.zeros(()), {})

    clock = Clock(tmp_path / "clock.jsonl", epochs=3)
    assert clock.to_dict() == {"epochs": [], "epoch": None, "training": 0}
    for report, after in [
        (StageProgress("tokenising", 1, 1), 100.0),
        (step(1), 1.0),
        (step(2), 2.0),
        (Epoch(1, {}, True), 50.0),
        (step(3), 4.0),
        (step(4), 1.0),
        (Epoch(2, {}, True), 50.0),
        (step(5), 7.0),
    ]:
        update(clock, report, after)
    resumed = Clock(tmp_path / "clock.jsonl", epochs=3)
    for report, after in [
        (step(4), 9.0),
        (Epoch(2, {}, True), 1.0),
        (step(5), 5.0),
        (step(6), 1.0),
        (Epoch(3, {}, True), 3.0),
    ]:
        update(resumed, report, after)
    assert resumed.to_dict() == {"epochs": [3.0, 6.0], "epoch": 4.5, "training": 153.0 + 55.0 + 10.0 + 9.0}


# Statistics


def test_the_t_tests_are_those_of_scipy_and_of_student() -> None:
    row, reference = {1: 0.81, 2: 0.83, 3: 0.8, 5: 0.79}, {1: 0.84, 2: 0.83, 3: 0.85, 4: 0.82}
    found = summarise(row, reference)
    assert found is not None
    one = scipy_stats.ttest_1samp(list(row.values()), statistics.mean(reference.values())).pvalue
    paired = scipy_stats.ttest_rel([0.81, 0.83, 0.8], [0.84, 0.83, 0.85]).pvalue
    assert found.one_sample == pytest.approx(one) and found.paired == pytest.approx(paired)
    assert found.mean == pytest.approx(0.8075) and found.deviation == pytest.approx(statistics.stdev(row.values()))
    drug1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    drug2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    sleep = summarise(dict(enumerate(drug2)), dict(enumerate(drug1)))
    assert sleep is not None and sleep.paired == pytest.approx(0.002833, abs=5e-7), "Student 1908"
    assert sleep.marks.endswith("‡")


def test_p_values_without_variance_or_with_one_seed() -> None:
    assert summarise({}, {1: 0.5}) is None
    assert summarise({1: 0.5}, {1: 0.5, 2: 0.6}) == Summary((0.5,), None, None)
    same, apart = summarise({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5}), summarise({1: 0.6, 2: 0.6}, {1: 0.5, 2: 0.5})
    assert same is not None and (same.one_sample, same.paired, same.marks) == (1.0, 1.0, "")
    assert apart is not None and (apart.one_sample, apart.paired, apart.marks) == (0.0, 0.0, "†‡")
    assert Summary((0.5,)).deviation is None


# Pages


def section(text: str, title: str) -> dict[str, dict[str, str]]:
    """A table of a Markdown page: cells by the name of the line and of the column."""
    body = text.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("|")
    ]
    return {line[0]: dict(zip(lines[0][1:], line[1:], strict=True)) for line in lines[2:]}


def test_the_table_shows_the_metrics_of_the_runs(done: tuple[Path, Page, Counted]) -> None:
    out, page, _ = done
    text = (out / "ablation" / "table.md").read_text()
    columns = {
        "micro F1": "micro_f1",
        "macro F1": "macro_f1",
        "hierarchical F1": "hierarchical_f1",
        "path F1": "path_micro_f1",
    }
    titles = {"raw": "Threshold 0.5, as in the paper", "tuned": "One threshold tuned on dev, consistent label sets"}
    for decoding, title in titles.items():
        found = section(text, title)
        assert found == section(page.text, title)
        for line, row in (("HILL", "hill"), ("r.m. L\\_clr", "hill-no-contrast")):
            for column, name in columns.items():
                values = [record(out, f"{row}-{seed}")["test"][decoding][name] * 100 for seed in (1, 2)]
                spread = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
                assert found[line][column].rstrip("†‡") == spread
            assert found[line]["runs"] == "2" and found["r.p. GIN"]["micro F1"] == "–"
    every = section(text, "Every metric: threshold 0.5, as in the paper")
    assert {"level 2 macro\\_f1", "ece", "precision\\_at\\_5", "lca\\_f1", "violations"} <= set(every)
    values = [record(out, f"hill-{seed}")["test"]["raw"]["levels"][1]["macro_f1"] * 100 for seed in (1, 2)]
    assert every["level 2 macro\\_f1"]["HILL"].startswith(f"{statistics.mean(values):.2f} ± ")
    cost = section(text, "Cost")["HILL"]
    assert cost["other weights"] == f"{record(out, 'hill-1')['parameters']['rest']:,}"
    assert cost["GPU memory, MiB"] == "–" and cost["epochs"] == "3.0"


def test_all_files_are_written_and_the_report_is_self_contained(done: tuple[Path, Page, Counted]) -> None:
    out, page, _ = done
    names = {
        "table.md",
        "report.html",
        *(f"results-{kind}.{form}" for kind in ("raw", "tuned") for form in ("svg", "png")),
    }
    assert {file.name for file in page.files} == names == {file.name for file in (out / "ablation").iterdir()}
    report = (out / "ablation" / "report.html").read_text()
    assert report.count("data:image/svg+xml;base64,") == 2 and "<script" not in report
    assert not re.search(r'(src|href)="(?!data:)', report)


def made_results(table: str, titles: dict[str, str], values: dict[str, list[float]]) -> Results:
    """Results of rows with these micro F1, seed by seed."""
    known = table_rows(table, None)
    rows = [ExperimentRow(row.name, titles.get(row.name, row.title), row.model, row.settings, row.run) for row in known]
    metrics = ("macro_f1", "macro_f1_supported", "hierarchical_f1", "path_micro_f1", "violations")

    def run(seed: int, value: float) -> dict[str, Any]:
        test = {"documents": 9, "micro_f1": value, **dict.fromkeys(metrics, 0.5), "levels": []}
        return {
            "seed": seed,
            "config": {"model": {"encoder": "<tiny>", "text": "transformer"}},
            "versions": {"device": "CPU", "torch": "2"},
            "data": {"documents": {"train": 10}, "labels": 7},
            "parameters": {"text": 10, "rest": 2_000_000 + seed},
            "seconds": {"training": 2.0 * seed, "epoch": 1.5, "test": 0.1},
            "peak_memory": 2**20 * seed,
            "threshold": 0.3,
            "dev_curve": [{}],
            "test": {"raw": test, "tuned": test},
        }

    records = {row.name: {s: run(s, v) for s, v in enumerate(values.get(row.name, []), 1)} for row in rows}
    return Results(table, "<wos>", rows, records, reference_row(table, rows))


def test_marks_show_significant_differences() -> None:
    values = {
        "hill": [0.80, 0.81, 0.82],
        "hill-gin": [0.70, 0.71, 0.72],
        "hill-gat": [0.80, 0.82, 0.81],
        "hill-gcn": [0.7],
    }
    shown = section(
        markdown("x", [], made_results("ablation", {}, values).sections()), "Threshold 0.5, as in the paper"
    )
    cells = [shown[line]["micro F1"] for line in ("HILL", "r.p. GIN", "r.p. GAT", "r.p. GCN", "r.m. L\\_clr")]
    assert cells == ["81.00 ± 1.00", "71.00 ± 1.00†‡", "81.00 ± 1.00", "70.00", "–"]


def test_the_table_has_the_numbers_of_the_paper() -> None:
    made = made_results("ablation", {}, {"hill": [0.87]})
    results = Results(made.table, "rcv1", made.rows, made.records, made.reference)
    shown = section(markdown("x", [], results.sections()), "Threshold 0.5, as in the paper")
    found = {line: (cells["paper: micro"], cells["paper: macro"]) for line, cells in shown.items()}
    assert found["HILL"] == ("87.31", "70.12") and found["r.m. Algorithm 1"] == ("86.67", "67.92")
    made = made_results("main-table", {}, {})
    results = Results(made.table, "nyt", made.rows, made.records, made.reference)
    shown = section(markdown("x", [], results.sections()), "Threshold 0.5, as in the paper")
    assert shown["HiMatch"]["paper: micro"] == "–" and shown["BERT"]["paper: macro"] == "65.62"


def test_titles_and_names_are_escaped() -> None:
    title = "<b>&|`x`[a](b)$"
    results = made_results("ablation", {"hill": title}, {"hill": [0.5]})
    page = html("<i>", ["<u>"], results.sections(), {})
    assert "&lt;b&gt;&amp;|`x`" in page and not re.search("<[biu]>", page)
    text = markdown("<i>", ["<u>"], [Section(title, title, ["", title], [[title, "1"]])])
    assert "<b>" not in text.replace("\\<b\\>", "") and "\\|\\`x\\`\\[a\\](b)$" in text


@pytest.mark.parametrize("table", ["heights", "cost", "trees"])
def test_figures_of_every_kind(table: str, tmp_path: Path) -> None:
    names = list(TABLES[table])
    results = made_results(table, {names[0]: "a $x$ & <b>"}, {names[0]: [0.5, 0.6], names[1]: [0.7]})
    for files in draw(results, tmp_path).values():
        svg, png = (file.read_bytes() for file in files)
        assert (
            b"<svg" in svg
            and b"<b>" not in svg
            and (table == "heights" or b">a $x$ &amp;" in svg)
            and png.startswith(b"\x89PNG")
        )


def test_figures_are_reproducible_and_may_be_empty(tmp_path: Path) -> None:
    results = made_results("cost", {}, {"hill-timed": [0.5, 0.6]})
    first, again = (draw(results, tmp_path)["cost"][0].read_bytes() for _ in range(2))
    assert first == again != draw(made_results("cost", {}, {}), tmp_path)["cost"][0].read_bytes()
    assert draw(made_results("heights", {}, {}), tmp_path)


def test_the_cost_figure_shows_memory_if_it_was_measured(tmp_path: Path) -> None:
    results = made_results("cost", {}, {"hill-timed": [0.5, 0.6]})
    assert "GPU memory, MiB" in draw(results, tmp_path)["cost"][0].read_text()
    for run in results.runs():
        run["peak_memory"] = None  # type: ignore[index]
    found = draw(results, tmp_path)["cost"][0].read_text()
    assert "seconds per epoch" in found and "GPU memory" not in found


def test_a_figure_leaves_out_rows_without_runs(tmp_path: Path) -> None:
    results = made_results("trees", {}, {"hill-tree-paper": [0.5]})
    found = draw(results, tmp_path)["tuned threshold"][0].read_text()
    assert "paper tree" in found and "random tree" not in found


def test_axes_start_at_0_or_above(tmp_path: Path) -> None:
    results = made_results("trees", {}, {"hill-tree-paper": [0.01, 0.9]})  # whose mean less a deviation is below 0
    assert "\N{MINUS SIGN}" not in draw(results, tmp_path)["tuned threshold"][0].read_text()


def test_the_cost_page_shows_times_weights_and_memory() -> None:
    sections = made_results("cost", {}, {"hill-timed": [0.5, 0.6]}).sections()
    cost = section(markdown("x", [], sections), "Cost")["HILL"]
    assert sections[0].title == "Cost" and cost["epoch, s"] == "1.50" and cost["GPU memory, MiB"] == "2 ± 1"
    assert cost["training, s"] == "3.0 ± 1.4" and cost["other weights"] == "2,000,002 ± 1"


def test_a_page_without_runs() -> None:
    sections = made_results("main-table", {}, {}).sections()
    assert "| HILL | 0 | – |" in markdown("x", [], sections)


def test_parallel_runs_give_the_same_results(
    done: tuple[Path, Page, Counted], data: Path, rows: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    page = ablation(data, tmp_path, rows, tiny_encoder, seeds="1", workers=2)
    assert not page.failed
    for run in ("hill-1", "hill-no-contrast-1"):
        one, other = (record(out, run) for out in (done[0], tmp_path))
        assert one["test"] == other["test"] and one["dev_curve"] == other["dev_curve"]
    assert not ablation(data, tmp_path, rows, tiny_encoder, seeds="1", workers=2).failed
