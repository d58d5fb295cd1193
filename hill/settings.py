"""Settings: frozen dataclasses that are read from TOML files and `group.key=value`, checked and described."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from hill.errors import ConfigError

Settings = TypeVar("Settings")
Groups = dict[str, dict[str, Any]]
MAX_NUMBER = 10**18
"""The largest number that a setting can have; it fits in 64 bits."""
MAX_SHOWN = 200
"""Messages show this many characters of a value."""


# Reading


def read_settings(file: Path | None, assignments: Iterable[str], groups: Iterable[str]) -> Groups:
    """Read settings by group from a TOML file; assignments such as `model.height=3` override them."""
    names = list(groups)
    settings: Groups = {group: {} for group in names}
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8")) if file else {}
    except OSError as error:
        raise ConfigError(f"cannot read '{file}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"'{file}' is not TOML: {error}") from None
    for group, values in content.items():
        if not isinstance(values, dict):
            raise ConfigError(f"'{group}' in '{file}' is outside a group; the groups are {', '.join(names)}")
        _check_name(group, names, "group")
        settings[group].update(values)
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        group, dot, name = key.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(f"'{assignment}' is not a setting; write it as group.key=value, such as train.epochs=5")
        _check_name(group, names, "group")
        settings[group][name] = _parse_value(value.strip())
    return settings


def by_group(settings: Any) -> Groups:
    """Copy settings that were given in Python: a dictionary per group, or None."""
    groups = {} if settings is None else settings
    if not isinstance(groups, Mapping) or not all(isinstance(values, Mapping) for values in groups.values()):
        example = "{'train': {'epochs': 3}}"
        raise ConfigError(f"settings are {_shown(settings)}; expected a dictionary for each group, such as {example}")
    return {group: dict(values) for group, values in groups.items()}


def find_setting(name: str, kinds: Mapping[str, type]) -> tuple[str, str]:
    """The group and the key of a setting that was given as a keyword: `epochs`, or `train__epochs`."""
    group, separator, key = name.partition("__")
    if separator:
        return group, key
    names = {group: [field.name for field in dataclasses.fields(kind)] for group, kind in kinds.items()}
    groups = [group for group in names if name in names[group]]
    if len(groups) == 1:
        return groups[0], name
    if groups:
        forms = " or ".join(f"{group}__{name}" for group in groups)
        raise ConfigError(f"'{name}' is a setting of {' and of '.join(groups)}; write {forms}")
    near = difflib.get_close_matches(name, [each for keys in names.values() for each in keys], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "`hill settings` lists all"
    raise ConfigError(f"unknown parameter or setting '{name}'; {hint}")


def make(kind: type[Settings], values: Mapping[str, Any], group: str) -> Settings:
    """Build a settings dataclass; an unknown name or a value of the wrong type is a `ConfigError`."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        _check_name(name, names, f"setting of {group}")
    return kind(**{name: _convert(value, hints[name], f"{group}.{name}") for name, value in values.items()})


def to_dict(settings: Any) -> dict[str, Any]:
    """Settings as plain values."""
    return dataclasses.asdict(settings)


def describe(kind: type) -> list[tuple[str, str, Any, str]]:
    """The name, type, default and docstring of every field, base classes first."""
    docstrings: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                docstrings[field.target.id] = " ".join(ast.literal_eval(text.value).split())  # type: ignore[union-attr]
    hints = typing.get_type_hints(kind)
    return [
        (field.name, _type_name(hints[field.name]), field.default, docstrings.get(field.name, ""))
        for field in dataclasses.fields(kind)
    ]


# Checks of values


def check_one_of(value: Any, choices: Iterable[str], name: str) -> None:
    """Raise a `ConfigError` unless the value is one of these."""
    if value not in (choices := list(choices)):
        near = difflib.get_close_matches(value[:MAX_SHOWN], choices, n=1) if isinstance(value, str) else []
        hint = f"did you mean '{near[0]}'?" if near else f"expected {', '.join(choices)}"
        raise ConfigError(f"unknown {name} {_shown(value)}; {hint}")


def check_at_least(value: Any, minimum: float, name: str) -> None:
    """Raise a `ConfigError` unless the value is a number of at least the minimum."""
    number: Any = value if isinstance(value, Real) else math.nan
    if not number >= minimum:
        raise ConfigError(f"{name} is {_shown(value)}; expected at least {minimum:g}")


def within(value: float, minimum: float, maximum: float, name: str) -> None:
    """Raise a `ConfigError` unless minimum ≤ value ≤ maximum."""
    if not minimum <= value <= maximum:
        raise ConfigError(f"{name} is {value}; expected a number from {minimum} to {maximum}")


# Helpers


def _parse_value(text: str) -> Any:
    """Parse a value as TOML; an unquoted word is a string."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if len(document) == 1 else text


def _check_name(name: str, names: list[str], what: str) -> None:
    if name not in names:
        near = difflib.get_close_matches(str(name)[:MAX_SHOWN], names, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(names)}"
        raise ConfigError(f"unknown {what} '{name}'; {hint}")


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Check the type of a value; a whole number becomes a float if only floats are expected."""
    kinds = _kinds(hint)
    if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise ConfigError(f"{name} is {_shown(value)}; expected a finite number of at most {MAX_NUMBER:g}")
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds and int not in kinds:
        return float(value)
    if not any(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) for kind in kinds):
        raise ConfigError(f"{name} is {_shown(value)}; expected {_type_name(hint)}")
    return value


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a type hint: int and None for `int | None`."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _type_name(hint: Any) -> str:
    return " or ".join("nothing" if kind is types.NoneType else kind.__name__ for kind in _kinds(hint))


def _shown(value: Any) -> str:
    """The start of the repr, which can fail for values that are nested deeply."""
    try:
        return repr(value)[:MAX_SHOWN]
    except (ValueError, RecursionError):
        return f"too long to show ({type(value).__name__})"
