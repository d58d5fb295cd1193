"""Settings: frozen dataclasses whose fields are documented where they stand, read from TOML and `group.key=value`."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from hill.errors import ConfigError

Settings = TypeVar("Settings")
Groups = dict[str, dict[str, Any]]
LARGEST = 10**300
"""Whole numbers beyond this have no floating-point number near them."""
LONGEST = 200
"""Characters of a value that a message shows."""


def read_settings(file: Path | None, assignments: Iterable[str], groups: Iterable[str]) -> Groups:
    """The settings of a TOML file by group, overridden by assignments such as `model.height=3`."""
    known = list(groups)
    found: Groups = {group: {} for group in known}
    for group, values in (_read_toml(file) if file else {}).items():
        if not isinstance(values, dict):
            raise ConfigError(f"'{group}' in '{file}' stands outside a group; the groups are {', '.join(known)}")
        found[_known(group, known, "group")].update(values)
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        group, dot, name = key.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(f"'{assignment}' is not a setting; write it as group.key=value, such as train.epochs=5")
        found[_known(group, known, "group")][name] = _value(value.strip())
    return found


def make(kind: type[Settings], values: Mapping[str, Any], group: str) -> Settings:
    """Settings of this kind; an unknown key is an error that names the nearest one, a wrong type one that says so."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    checked = {
        name: _of_type(value, hints[name], f"{group}.{name}")
        for key, value in values.items()
        for name in [_known(key, names, f"setting of {group}")]
    }
    return kind(**checked)


def document(settings: Any) -> dict[str, Any]:
    """Settings as plain values."""
    return dataclasses.asdict(settings)


def describe(kind: type) -> list[tuple[str, str, Any, str]]:
    """Name, type, default and documentation of every field, those of base classes first."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())  # type: ignore[union-attr]
    hints = typing.get_type_hints(kind)
    return [
        (field.name, _type_name(hints[field.name]), field.default, texts.get(field.name, ""))
        for field in dataclasses.fields(kind)
    ]


def one_of(value: str, known: Iterable[str], name: str) -> None:
    """Raise if a setting's value is none of those it may have."""
    if value not in (names := list(known)):
        near = difflib.get_close_matches(value, names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; expected {', '.join(names)}"
        raise ConfigError(f"unknown {name} '{value}'{hint}")


def at_least(value: float, least: float, name: str) -> None:
    """Raise if a number is below what makes sense."""
    if not value >= least:
        raise ConfigError(f"{name} is {value}; expected at least {least:g}")


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read '{file}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"'{file}' is not TOML: {error}") from None


def _value(text: str) -> Any:
    """A value as TOML reads it; a bare word is a string."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def _known(name: str, names: list[str], what: str) -> str:
    if name not in names:
        near = difflib.get_close_matches(str(name)[:LONGEST], names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; expected one of {', '.join(names)}"
        raise ConfigError(f"unknown {what} '{name}'{hint}")
    return name


def _of_type(value: Any, hint: Any, name: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds and int not in kinds:
        if abs(value) > LARGEST:
            raise ConfigError(f"{name} is a number of {len(hex(value)) - 2} hexadecimal digits; expected one in range")
        return float(value)
    if not any(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) for kind in kinds):
        raise ConfigError(f"{name} is {_shown(value)}; expected {_type_name(hint)}")
    return value


def _shown(value: Any) -> str:
    """A value as it is written in Python, if that can be read."""
    try:
        return repr(value)[:LONGEST]
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} without end"


def _type_name(hint: Any) -> str:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return " or ".join("nothing" if kind is types.NoneType else kind.__name__ for kind in kinds)
