"""Packages that come with an extra: imported when needed; where one is missing, the error names the remedy."""

from importlib import import_module
from typing import Any

from hill.errors import ConfigError


def need(module: str, extra: str, purpose: str) -> Any:
    """The module, or a `ConfigError` that names the command that installs it."""
    try:
        return import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise ConfigError(
            f"{purpose} needs {package}, which is not installed; run: pip install 'hill-htc[{extra}]'"
        ) from None
