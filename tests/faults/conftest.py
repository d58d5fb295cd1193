"""What a training gives that nothing happens to."""

from pathlib import Path

import pytest

from tests.faults.made import learn


@pytest.fixture(scope="session")
def unbroken(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("faults") / "unbroken"
    learn(tiny_encoder, out, checkpoint_seconds=3600.0)
    return out
