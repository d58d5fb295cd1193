"""One pass over scores that counts everything a report tells, in memory that does not grow with the documents."""

from collections.abc import Iterable, Iterator
from typing import Any

from scipy.sparse import csr_array

from hill.metrics.blocks import blocks_of
from hill.metrics.counts import Counts
from hill.metrics.sparse import AnyEdges
from hill.predictor import Predictor, Scored
from hill.report.block import Block
from hill.report.curves import Reliability, Thresholds
from hill.report.errors import Errors
from hill.report.paths import Paths
from hill.report.siblings import Siblings
from hill.report.sizes import Sizes


class Tally:
    """Counts what a predictor says of documents with these labels (documents, L).

    Args:
        predictor: what decodes the scores.
        labels: the gold labels.
        errors: how many errors of each kind are kept.
    """

    def __init__(self, predictor: Predictor, labels: csr_array[Any], errors: int) -> None:
        taxonomy = predictor.taxonomy
        self._labels = labels
        self._decoder = predictor.decoder()
        self._edges = AnyEdges(taxonomy)
        self.counts = Counts(len(taxonomy))
        self.paths = Paths(taxonomy)
        self.siblings = Siblings(taxonomy)
        self.sizes = Sizes(len(taxonomy))
        self.errors = Errors(taxonomy, errors)
        self.thresholds = Thresholds(taxonomy)
        self.before, self.after = Reliability(), Reliability()

    def watch(self, scored: Iterable[Scored]) -> Iterator[Scored]:
        """The same scores, counted as they pass."""
        for documents, scores in scored:
            for start, stop in blocks_of(scores):
                part = documents[start:stop]
                gold: csr_array[Any] = self._labels[part].astype(bool)
                chosen, effective = self._decoder.decide(scores[start:stop])
                self._add(Block(part, gold, csr_array(chosen), scores[start:stop], effective, self._edges))
            yield documents, scores

    def _add(self, block: Block) -> None:
        hits = block.gold * block.chosen
        self.counts.add(*(block.moving.per_label(labels) for labels in (hits, block.chosen, block.gold)))
        for counter in (self.paths, self.siblings, self.sizes, self.errors):
            counter.update(block)
        self.thresholds.update(block.gold, block.compared(self._decoder))
        self.before.update(block.gold, block.raw)
        self.after.update(block.gold, block.effective)
