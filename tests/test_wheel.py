"""The wheel and the source distribution: built from this checkout, complete, and usable without it."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

SHOP = {"Food > Fruit": "ripe banana apple", "Food > Bread": "sourdough loaf rye", "Tools > Saws": "steel saw blade"}


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command outside of the checkout, without its path, and return what it prints."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COVERAGE_PROCESS_CONFIG")
    }
    environment["PYTHONNOUSERSITE"] = "1"
    result = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def build(source: Path, kind: str, out: Path) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source, cwd=out.parent)
    (file,) = out.iterdir()
    return file


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("built") / "wheel")


def tracked_files() -> set[str]:
    """The files of the package in the checkout."""
    files = (path for path in (ROOT / "hill").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_the_wheel_has_all_files_of_the_package_and_nothing_else(wheel: Path) -> None:
    found = {name for name in names(wheel) if ".dist-info/" not in name}
    assert found == tracked_files()
    for name in ("hill/templates/report.html", "hill/serve/page/index.html", "hill/research/settings/wos/hill.toml"):
        assert name in found
    assert {name.partition("/")[2] for name in names(wheel) - found} >= {
        "METADATA",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    assert names(build(folder, "wheel", tmp_path / "again")) == names(wheel)
    for name in ("Makefile", "constraints.txt", "examples/quickstart.ipynb", "tests/conftest.py", "docs/index.md"):
        assert (folder / name).is_file()


def test_the_installed_wheel_trains_and_predicts(wheel: Path, tmp_path: Path) -> None:
    """In a new environment: hill from the wheel, its dependencies from the environment of the tests."""
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # a path in sys.path is searched, but its .pth files, such as that of an editable hill, are not read
    (packages / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("-packages")) + "\n"
    )
    found = run(python, "-c", "import hill, torch; print(hill.__file__)", cwd=tmp_path)
    assert Path(found.strip()) == packages / "hill" / "__init__.py"

    hill = tmp_path / "env" / "bin" / "hill"
    lines = [f"{words} {number},{path}" for number in range(8) for path, words in SHOP.items()]
    (tmp_path / "shop.csv").write_text("\n".join(["text,labels", *lines]))
    (tmp_path / "shop.txt").write_text("\n".join(SHOP))
    assert "train" in run(hill, "--help", cwd=tmp_path)
    assert "fit to train on" in run(hill, "check", "shop.csv", "--taxonomy", "shop.txt", cwd=tmp_path)
    run(hill, "train", "shop.csv", "--taxonomy", "shop.txt", "--model", "linear", "--out", "model", cwd=tmp_path)
    assert "Food > Bread" in run(hill, "predict", "model", "rye sourdough loaf", cwd=tmp_path)
    run(hill, "evaluate", "model", "shop.csv", "--report", "report.html", cwd=tmp_path)  # reads templates
    assert "<html" in (tmp_path / "report.html").read_text()
