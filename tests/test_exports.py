"""`__all__` is exactly what is public."""

import importlib
import pkgutil
import types

import pytest

import hill

ROOMS = ["hill"] + [f"hill.{m.name}" for m in pkgutil.iter_modules(hill.__path__) if m.ispkg]


@pytest.mark.parametrize("name", ROOMS)
def test_all_is_exactly_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    exported = module.__all__
    assert exported == sorted(exported, key=lambda n: (not n.isupper(), not n[0].isupper(), n)), "sorted"
    for public in exported:
        assert getattr(module, public) is not None
    held = {n for n, value in vars(module).items() if n[0] != "_" and not isinstance(value, types.ModuleType)}
    assert held - set(exported) - {"TYPE_CHECKING", "Any", "import_module"} == set()


def test_public_names_load_on_first_use_and_others_do_not_exist() -> None:
    assert set(dir(hill)) == set(hill.__all__)
    listed = [name for names in hill._PACKAGES.values() for name in names]
    assert sorted(listed) == sorted(hill.__all__) and len(listed) == len(set(listed))
    with pytest.raises(AttributeError, match="module 'hill' has no attribute 'nothing'"):
        _ = hill.nothing  # type: ignore[attr-defined]


def test_errors_are_one_family() -> None:
    for name in ("TaxonomyError", "DataError", "ConfigError", "CheckpointError"):
        assert issubclass(getattr(hill, name), hill.HillError) and issubclass(hill.HillError, ValueError)
