"""The result of a training without faults."""

from pathlib import Path

import pytest

from tests.faults.helpers import learn


@pytest.fixture(scope="session")
def reference(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("faults") / "reference"
    learn(tiny_encoder, out, checkpoint_seconds=3600.0)
    return out
