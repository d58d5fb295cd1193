"""The parts of a model card that programs read: its YAML front matter, and the settings as TOML."""

import json
from typing import Any

from huggingface_hub import ModelCardData

from hill.hub.facts import Facts
from hill.nn.pretrained import MINILM, MINILM_HUB
from hill.settings import Groups

LIBRARY = "hill"


def front_matter(facts: Facts) -> str:
    """What the hub shows and searches; licence and language are for those who publish to add."""
    front = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag="text-classification",
        tags=["hierarchical-text-classification", "multi-label-classification", facts.name],
        metrics=["f1"] if "micro_f1" in facts.metrics else None,
        base_model=_base_model(facts.settings["model"]),
    )
    return str(front.to_yaml()).strip()


def settings_toml(facts: Facts) -> str:
    """All settings as `hill train --config` reads them."""
    groups = public(facts.settings)
    groups["model"] = {"name": facts.name, **groups["model"]}
    return "\n".join(f"[{group}]\n{_toml_lines(values)}" for group, values in groups.items())


def public(settings: Groups) -> Groups:
    """Settings without the folders of the machine they were made on: of a path, `./` and the last name."""
    return {group: {key: _last_name(value) for key, value in values.items()} for group, values in settings.items()}


def _base_model(model: dict[str, Any]) -> str | None:
    """The encoder's name on the hub, where it has one."""
    encoder: str | None = model.get("encoder")
    if model.get("text") != "transformer" or _is_path(encoder):
        return None
    return MINILM_HUB if encoder == MINILM else encoder


def _last_name(value: Any) -> Any:
    return "./" + value.replace("\\", "/").rstrip("/").split("/")[-1] if _is_path(value) else value


def _is_path(value: Any) -> bool:
    """Whether a setting is a path on some machine; a name on the hub has one slash, inside."""
    return isinstance(value, str) and (value.startswith((".", "/", "~")) or "\\" in value or value.count("/") > 1)


def _toml_lines(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in values.items() if value is not None)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
