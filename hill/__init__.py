"""Classify text into a taxonomy.

The names below are loaded when they are first used, so that importing the package is quick and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hill.classifier import HillClassifier
    from hill.data import Documents, read_data
    from hill.errors import CheckpointError, ConfigError, DataError, HillError, TaxonomyError
    from hill.metrics import Scorer, score
    from hill.taxonomy import Label, Taxonomy, read_taxonomy, write_taxonomy
    from hill.tree import CodingTree, build_tree
    from hill.types import Prediction

__all__ = [
    "CheckpointError",
    "CodingTree",
    "ConfigError",
    "DataError",
    "Documents",
    "HillClassifier",
    "HillError",
    "Label",
    "Prediction",
    "Scorer",
    "Taxonomy",
    "TaxonomyError",
    "build_tree",
    "read_data",
    "read_taxonomy",
    "score",
    "write_taxonomy",
]

_PACKAGES = {
    "errors": ("CheckpointError", "ConfigError", "DataError", "HillError", "TaxonomyError"),
    "types": ("Prediction",),
    "taxonomy": ("Label", "Taxonomy", "read_taxonomy", "write_taxonomy"),
    "tree": ("CodingTree", "build_tree"),
    "data": ("Documents", "read_data"),
    "metrics": ("Scorer", "score"),
    "classifier": ("HillClassifier",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("hill-htc")
    for package, names in _PACKAGES.items():
        if name in names:
            return getattr(import_module(f"hill.{package}"), name)
    raise AttributeError(f"module 'hill' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
