"""A classifier in a folder or on a model hub: what is written, fetched and never run."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard, ModelHubMixin

from hill.classifier import HillClassifier
from hill.errors import CheckpointError
from hill.io import sha256
from tests.conftest import animals_taxonomy, toy_documents

TEXTS = toy_documents(25, seed=6)[0]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def fitted(tiny_encoder: Path) -> HillClassifier:
    settings: Any = {"model": {"encoder": str(tiny_encoder), "height": 2}, "train": {"epochs": 2, "batch_size": 8}}
    return HillClassifier(animals_taxonomy(), settings=settings, preset=None).fit(*toy_documents(40, seed=1))


@pytest.fixture
def saved(fitted: HillClassifier, tmp_path: Path) -> Path:
    assert fitted.save_pretrained(tmp_path / "model") is None
    return tmp_path / "model"


def same(loaded: HillClassifier, fitted: HillClassifier) -> bool:
    return np.array_equal(loaded.predict_proba(TEXTS), fitted.predict_proba(TEXTS)) and (
        loaded.predict(TEXTS) == fitted.predict(TEXTS) and loaded.metrics == fitted.metrics
    )


def test_a_folder_with_a_card_comes_back_the_same(fitted: HillClassifier, saved: Path) -> None:
    assert isinstance(fitted, ModelHubMixin)
    loaded = HillClassifier.from_pretrained(saved)
    assert same(loaded, fitted) and loaded.training_record == fitted.training_record
    assert (saved / "README.md").read_text() == str(fitted.generate_model_card()) == str(loaded.generate_model_card())
    assert ModelCard.load(saved / "README.md").data.library_name == "hill"
    (saved / "README.md").write_text("edited by hand")
    assert same(HillClassifier.from_pretrained(str(saved)), fitted), "a card may be edited"


def test_no_path_of_this_machine_is_published(fitted: HillClassifier, saved: Path, tiny_encoder: Path) -> None:
    assert fitted.settings()["model"]["encoder"] == str(tiny_encoder)
    place = str(tiny_encoder.parent).encode()
    assert [file.name for file in saved.rglob("*") if file.is_file() and place in file.read_bytes()] == []
    assert json.loads((saved / "config.json").read_text())["settings"]["model"]["encoder"] == f"./{tiny_encoder.name}"


def test_saving_again_leaves_the_files_of_others(fitted: HillClassifier, saved: Path) -> None:
    (saved / "notes.txt").write_bytes(b"mine")
    fitted.save_pretrained(saved)
    assert (saved / "notes.txt").read_bytes() == b"mine" and same(HillClassifier.from_pretrained(saved), fitted)


def test_push_uploads_what_from_pretrained_reads(
    fitted: HillClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, Any] = {}

    class Api:
        def __init__(self, token: str | None = None) -> None:
            calls["token"] = token

        def create_repo(self, **options: Any) -> Any:
            calls["create"] = options
            return SimpleNamespace(repo_id=options["repo_id"])

        def upload_folder(self, folder_path: Path, **options: Any) -> str:
            calls["upload"] = options
            shutil.copytree(folder_path, tmp_path / "remote")
            return "https://hub/commit"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    url = fitted.push_to_hub("me/animals", token="secret", private=True, commit_message="first")
    assert url == "https://hub/commit" and calls["token"] == "secret"
    assert calls["create"]["repo_id"] == "me/animals" and calls["create"]["private"] is True
    assert calls["upload"]["repo_id"] == "me/animals" and calls["upload"]["commit_message"] == "first"
    names = {str(file.relative_to(tmp_path / "remote")) for file in (tmp_path / "remote").rglob("*") if file.is_file()}
    assert names == {
        "README.md", "config.json", "taxonomy.json", "coding_tree.json", "label_counts.json", "tokenizer.json",
        "encoder/config.json", "model.safetensors", "thresholds.json", "metrics.json", "training.json", "seen.json",
        "files.json",
    }  # fmt: skip
    assert same(HillClassifier.from_pretrained(tmp_path / "remote"), fitted)
    shutil.rmtree(tmp_path / "remote")
    assert fitted.save_pretrained(tmp_path / "here", push_to_hub=True, repo_id="me/other") == "https://hub/commit"
    assert calls["create"]["repo_id"] == "me/other" and (tmp_path / "here" / "README.md").exists()


def test_a_repository_is_read_from_the_hubs_cache(fitted: HillClassifier, saved: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cache" / "models--me--animals"
    shutil.copytree(saved, cached / "snapshots" / COMMIT)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    options: Any = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    assert same(HillClassifier.from_pretrained("me/animals", **options), fitted)
    assert same(HillClassifier.from_pretrained("me/animals", revision=COMMIT, device="cpu", **options), fitted)
    with pytest.raises(CheckpointError, match="'me/plants' is neither a folder nor an accessible hub repository: "):
        HillClassifier.from_pretrained("me/plants", **options)


def test_only_data_is_fetched(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def fetch(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(saved)

    monkeypatch.setattr("hill.classifier.snapshot_download", fetch)
    HillClassifier.from_pretrained("me/animals", revision="v1", token="secret")
    patterns = asked.pop("allow_patterns")
    assert asked == {"repo_id": "me/animals", "revision": "v1", "token": "secret"}
    assert sorted(patterns) == ["*.json", "*.safetensors", "README.md"]


@pytest.mark.parametrize("place", ["./none", "/none/at/all", "a/b/c", "no spaces allowed"])
def test_what_is_neither_a_folder_nor_a_repository(place: str) -> None:
    with pytest.raises(CheckpointError, match=f"'{place}' is neither a folder nor an accessible hub repository: "):
        HillClassifier.from_pretrained(place)


def test_damage_is_found(saved: Path) -> None:
    (saved / "taxonomy.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"taxonomy.json' is damaged"):
        HillClassifier.from_pretrained(saved)


@pytest.mark.parametrize("kind", ["bert", "evil", "vision-encoder-decoder", None])
def test_loading_runs_no_code_of_the_folder(
    kind: str | None, fitted: HillClassifier, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: pass\n"
    for name in ("__init__.py", "modeling.py", "configuration.py", "encoder/modeling.py", "encoder/configuration.py"):
        (saved / name).write_text(code)
    (saved / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    config = json.loads((saved / "encoder" / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration.Evil", "AutoModel": "modeling.Evil"}
    (saved / "encoder" / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    sums = json.loads((saved / "files.json").read_text())
    sums["encoder/config.json"] = sha256(saved / "encoder" / "config.json")
    (saved / "files.json").write_text(json.dumps(sums))
    if kind == "bert":
        assert same(HillClassifier.from_pretrained(saved), fitted)
    else:
        with pytest.raises(CheckpointError, match="names code of its own, which is never run"):
            HillClassifier.from_pretrained(saved)
    assert not (tmp_path / "ran").exists()


def test_models_without_a_training_record(fitted: HillClassifier, saved: Path) -> None:
    sums = json.loads((saved / "files.json").read_text())
    del sums["training.json"]
    (saved / "files.json").write_text(json.dumps(sums))
    (saved / "training.json").unlink()
    loaded = HillClassifier.load(saved)
    assert same(loaded, fitted) and loaded.training_record == {}
    loaded.save(saved)
    assert not (saved / "training.json").exists()
