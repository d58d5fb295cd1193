"""Small things that many tests share."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from hill.taxonomy import Label, Taxonomy

settings.register_profile("hill", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("hill")

ROOT = Path(__file__).parent.parent


def random_taxonomy(seed: int, n: int = 30, roots: int = 3, most_parents: int = 1) -> Taxonomy:
    """A forest, or with several parents a DAG, whose parents come anywhere in the order."""
    draw = np.random.default_rng(seed)
    place = draw.permutation(n)
    labels = []
    for i in range(n):
        count = 0 if i < roots else min(i, int(draw.integers(1, most_parents + 1)))
        parents = draw.choice(i, size=count, replace=False).tolist() if count else []
        labels.append((place[i], Label(f"id{place[i]}", f"name {place[i]}", tuple(f"id{place[p]}" for p in parents))))
    return Taxonomy([label for _, label in sorted(labels, key=lambda pair: pair[0])])


@pytest.fixture
def animals() -> Taxonomy:
    """A small DAG: bats are mammals that fly, and two labels are called Others."""
    return Taxonomy(
        [
            Label("a", "Animals"),
            Label("m", "Mammals", ("a",)),
            Label("f", "Flyers", ("a",)),
            Label("bat", "Bats", ("m", "f"), "Mammals with wings."),
            Label("mo", "Others", ("m",)),
            Label("fo", "Others", ("f",)),
            Label("p", "Plants"),
        ]
    )
