"""Thresholds on raw scores decide like the decoder, with any calibration."""

from typing import Any

import numpy as np
import pytest

from hill.decode import DecodeConfig, Decoder, read_calibrator
from hill.export.onnx import plain_rule
from hill.predictor import Predictor
from tests.conftest import animals_taxonomy, random_taxonomy


class Given(Predictor):
    """A predictor with given decoding settings and without a model."""

    def __init__(self, taxonomy: Any, config: DecodeConfig, thresholds: Any = None, calibrator: Any = None) -> None:
        self.taxonomy, self.decode_config, self.thresholds, self.calibrator = taxonomy, config, thresholds, calibrator

    def scores(self, texts: Any) -> Any:
        raise NotImplementedError


def decide(rule: dict[str, Any], taxonomy: Any, scores: Any) -> Any:
    """Apply the rule to one label at a time."""
    own = scores > np.array(rule["thresholds"], dtype=np.float32)
    found = own.copy()
    for row in range(len(taxonomy)):
        family = [row, *(taxonomy.descendants(row) if rule["spread"] == "up" else taxonomy.ancestors(row))]
        if rule["spread"] != "off":
            found[:, row] = (own[:, family].any if rule["spread"] == "up" else own[:, family].all)(axis=1)
    return found


CURVES = [None, "temperature", "isotonic"]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(
    ("strategy", "several"),
    [("closure", False), ("ancestors", False), ("ancestors", True), ("top-down", False), ("raw", True), ("raw", False)],
)
def test_the_rule_decides_as_the_decoder_does(curve: str | None, strategy: str, several: bool) -> None:
    draw, taxonomy = np.random.default_rng(0), random_taxonomy(4, n=30, most_parents=3)
    scores = draw.random((400, 30), dtype=np.float32)
    scores[:5], scores[5:10] = 0.0, 1.0
    thresholds = draw.random(30) if several else None
    levels = draw.uniform(0.3, 3, len(taxonomy.levels))
    document = {"kind": "temperature", "levels": levels.tolist()}
    if curve == "isotonic":
        rising = np.sort(draw.random((len(levels) + 4, 65)), axis=1)
        rising[:, 20:40] = rising[:, 20:21]  # a flat stretch: many scores of one probability
        document = {
            "kind": "isotonic",
            "levels": rising[4:].tolist(),
            "rows": [3, 9, 4, 20],
            "labels": rising[:4].tolist(),
        }
    calibrator = read_calibrator(document, taxonomy) if curve else None
    given = Given(taxonomy, DecodeConfig(strategy, threshold=0.7), thresholds, calibrator)
    rule = plain_rule(given)
    assert rule is not None
    wanted = Decoder(taxonomy, given.decode_config, thresholds, calibrator).decode(scores)
    assert np.array_equal(decide(rule, taxonomy, scores), wanted) and 0.01 < wanted.mean() < 0.99


def test_thresholds_that_no_score_or_every_score_exceeds() -> None:
    for threshold, expected in ((1.0, [1.0] * 7), (0.0, [0.0] * 7)):
        rule = plain_rule(Given(animals_taxonomy(), DecodeConfig("raw", threshold=threshold)))
        assert rule == {"spread": "off", "thresholds": expected}
    levels = np.full((3, 65), 0.4)
    flat = read_calibrator(
        {"kind": "isotonic", "levels": levels.tolist(), "rows": [], "labels": []}, animals_taxonomy()
    )
    for threshold, number in ((0.3, -1.0), (0.5, 1.0)):
        rule = plain_rule(Given(animals_taxonomy(), DecodeConfig("raw", threshold=threshold), None, flat))
        assert rule is not None and rule["thresholds"] == [number] * 7


def test_other_strategies_have_no_rule() -> None:
    taxonomy, each = animals_taxonomy(), np.full(7, 0.5)
    for config, thresholds in (
        (DecodeConfig("path"), None),
        (DecodeConfig("safe"), None),
        (DecodeConfig("closure"), each),
        (DecodeConfig("top-down"), each),
        (DecodeConfig("closure", abstain=0.3), None),
    ):
        assert plain_rule(Given(taxonomy, config, thresholds)) is None, config
