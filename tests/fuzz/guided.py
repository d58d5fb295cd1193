"""Coverage-guided fuzzing with atheris, which mutates inputs that reach new lines.

The tests do not need it: `pip install atheris` (Linux only).
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.run import Row


def guide(names: list[str], inputs: int, seed: int, out: Path) -> int:
    """Fuzz readers one after the other, in processes with instrumented imports."""
    from tests.fuzz.run import shares

    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write("atheris is not installed; run: pip install atheris\n")
        return 2
    program = [sys.executable, "-m", "tests.fuzz.guided"]
    counts = shares(inputs, names)
    ends = [subprocess.run([*program, n, str(counts[n]), str(seed), str(out)], check=False) for n in names]
    return int(any(end.returncode for end in ends))


def main(name: str, count: int, seed: int, out: Path) -> None:
    """Fuzz one reader. The first byte of each input selects the file of a seed that the other bytes replace."""
    import atheris

    with atheris.instrument_imports(include=["hill"]):
        importlib.import_module("hill.data.check")
    importlib.import_module("hill.tree")  # compiled loops cannot be instrumented
    with atheris.instrument_imports(include=["hill"]):
        from tests.fuzz.readers import readers
        from tests.fuzz.run import Row, _warm, judge_files, keep

        reader = readers()[name]
        scratch = Path(tempfile.mkdtemp())
        _warm(reader, scratch / "input")
    places = [(files, part) for files in reader.seeds() for part in files]
    (scratch / "corpus").mkdir()
    for number, (files, part) in enumerate(places[:256]):
        (scratch / "corpus" / str(number)).write_bytes(bytes([number]) + files[part])
    row = Row(name)

    def give(data: bytes) -> None:
        files, part = places[(data[0] if data else 0) % len(places)]
        verdict = judge_files(reader, files | {part: data[1:]}, scratch / "input")
        if verdict.kind == "found":
            keep(scratch / "input", out / name, verdict, row.found)
        row.add(verdict)
        if row.inputs >= count:
            _end(row)

    options = [
        f"-seed={seed or 1}",
        "-max_len=20000",
        "-timeout=1000",
        "-rss_limit_mb=0",
        "-verbosity=0",
    ]
    atheris.Setup(["atheris", str(scratch / "corpus"), *options], give)
    atheris.Fuzz()


def _end(row: "Row") -> Any:
    from tests.fuzz.__main__ import show

    show([row], Path("build/fuzz"))
    sys.stdout.flush()
    os._exit(bool(row.found))  # atheris has no other way to stop


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
