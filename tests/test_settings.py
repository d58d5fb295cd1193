"""Settings: where they come from, and what is said when they are wrong."""

import runpy
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from hill.classifier import DataConfig
from hill.decode import DecodeConfig
from hill.errors import ConfigError
from hill.models import MODELS
from hill.settings import check_at_least, check_one_of, describe, make, read_settings
from hill.train import TrainConfig
from tests.conftest import ROOT

GROUPS = ("model", "train", "data", "decode")


@dataclass(frozen=True)
class Some:
    """Settings for a test."""

    rate: float = 0.1
    """How fast."""
    name: str | None = None
    """What it
    is called."""
    count: int = 1
    on: bool = False


def test_assignments_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[model]\nheight = 2\nreadout = "mean"\n[train]\nepochs = 9\n')
    found = read_settings(
        file, ["model.height=4", "train.lr = 1e-4", "model.encoder=minilm", "train.head_start=off"], GROUPS
    )
    assert found["model"] == {"height": 4, "readout": "mean", "encoder": "minilm"}
    assert found["train"] == {"epochs": 9, "lr": 1e-4, "head_start": "off"} and found["data"] == {}


@pytest.mark.parametrize(
    ("content", "assignments", "message"),
    [
        ("[modle]\nheight = 1\n", [], "unknown group 'modle'; did you mean 'model'?"),
        ("height = 1\n", [], "'height' in .* is outside a group; the groups are model, train"),
        ("[model\n", [], "is not TOML"),
        ("", ["height=3"], "'height=3' is not a setting; write it as group.key=value"),
        ("", ["model.height"], "is not a setting"),
    ],
)
def test_wrong_files_and_assignments(tmp_path: Path, content: str, assignments: list[str], message: str) -> None:
    (tmp_path / "run.toml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_settings(tmp_path / "run.toml", assignments, GROUPS)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml"):
        read_settings(tmp_path / "none.toml", [], GROUPS)


def test_values_are_of_their_type() -> None:
    assert make(Some, {"rate": 1, "name": None, "count": 3}, "some") == Some(1.0, None, 3)
    for values, message in [
        ({"rate": "fast"}, "some.rate is 'fast'; expected float"),
        ({"name": 3}, "some.name is 3; expected str or nothing"),
        ({"count": True}, "some.count is True; expected int"),
        ({"on": 1}, "some.on is 1; expected bool"),
        ({"cuont": 1}, "unknown setting of some 'cuont'; did you mean 'count'?"),
        ({"xyz": 1}, "unknown setting of some 'xyz'; expected one of rate, name, count, on"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make(Some, values, "some")


def test_descriptions_come_from_the_source() -> None:
    assert describe(Some)[:2] == [
        ("rate", "float", 0.1, "How fast."),
        ("name", "str or nothing", None, "What it is called."),
    ]


@pytest.mark.parametrize("kind", [TrainConfig, DataConfig, DecodeConfig, *(model.Config for model in MODELS.values())])
def test_every_setting_is_documented_and_has_a_default(kind: type) -> None:
    described = describe(kind)
    assert [name for name, *_ in described] == [field.name for field in fields(kind)]
    assert all(text.endswith(".") for *_, text in described)
    kind()


def test_rules_between_values() -> None:
    with pytest.raises(ConfigError, match=r"unknown train\.precision 'bf61'; did you mean 'bf16'\?"):
        TrainConfig(precision="bf61")
    with pytest.raises(ConfigError, match="unknown thing 'q'; expected a, b"):
        check_one_of("q", ["a", "b"], "thing")
    with pytest.raises(ConfigError, match=r"train.epochs is 0; expected at least 1"):
        TrainConfig(epochs=0)
    with pytest.raises(ConfigError, match="expected at least 0"):
        check_at_least(float("nan"), 0, "x")
    with pytest.raises(ConfigError, match=r"data\.dev_share is 1\.5"):
        DataConfig(dev_share=1.5)
    with pytest.raises(ConfigError, match=r"data\.test_share is 1\.0; expected 0, or a share below 1"):
        DataConfig(test_share=1.0)
    with pytest.raises(ConfigError, match=r"decode\.threshold is 2"):
        DecodeConfig(threshold=2)


TUNING = ROOT / "experiments/tuning"
ROWS = sorted((ROOT / "hill" / "research" / "settings").rglob("*.toml"))


def check(settings: dict[str, dict[str, Any]]) -> None:
    model = settings["model"].pop("name", "hill")
    for group, kind in zip(GROUPS, (MODELS[model].Config, TrainConfig, DataConfig, DecodeConfig), strict=True):
        make(kind, settings.get(group, {}), group)


@pytest.mark.parametrize("file", ROWS, ids=lambda file: file.name)
def test_every_published_run_parses(file: Path) -> None:
    check(read_settings(file, [], GROUPS))


@pytest.mark.parametrize("file", sorted(TUNING.glob("*.toml")), ids=lambda file: file.name)
def test_every_trial_parses(file: Path) -> None:
    found = tomllib.loads(file.read_text(encoding="utf-8"))
    merged = runpy.run_path(str(ROOT / "experiments/tune.py"))["merged"]
    for own in found["trials"].values():
        check(merged(found["base"], own))
