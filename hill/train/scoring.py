"""Scores of documents with a model in training or trained, and every metric of a split."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from hill.data.batches import collate, move, reading_order, to_device
from hill.data.resident import Resident
from hill.data.tokens import Tokens
from hill.metrics import Scorer
from hill.models import HTCModel
from hill.taxonomy import Taxonomy
from hill.taxonomy.cells import Table, best_table, most_kept
from hill.train.session import Session, Split
from hill.types import Batch, IntArray, Packed

READ_BATCH = 64
READ_TOKENS = 65_536
"""Tokens of a packed batch that is only read."""


def score_split(session: Session, split: Split, taxonomy: Taxonomy) -> dict[str, Any]:
    """Every metric of a split, labels chosen as the paper does: scores above 0.5, or the best of each level."""
    scorer = Scorer(taxonomy)
    for documents, scores in score_documents(session, split.tokens):
        if session.ranks.is_main:
            scorer.update(split.labels[documents], choose(session.model, scores), scores)
    return session.ranks.from_main(scorer.result() if session.ranks.is_main else {})


def choose(model: HTCModel, scores: Table) -> Table:
    """Labels with a score above 0.5; with one softmax a level, the best of each level.

    With a conditional softmax, the path that is best from the roots down, and all labels with a score above 0.25, since
    the labels of a document with several paths share the probability. Decoding is tuned when the training is over.
    """
    if model.siblings is None and model.config.loss != "softmax":
        return scores > 0.5
    if not isinstance(scores, csr_array):
        return _choose(model, scores)
    parts = (scores[start : start + READ_BATCH].toarray() for start in range(0, scores.shape[0], READ_BATCH))
    return csr_array(vstack([csr_array(_choose(model, part)) for part in parts]))


def _choose(model: HTCModel, scores: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if model.siblings is not None:
        device = model.siblings.child.device
        return model.siblings.choose(torch.from_numpy(scores).to(device)).cpu().numpy()
    chosen = np.zeros(scores.shape, dtype=bool)
    for rows in (level.cpu().numpy() for level in model.levels):
        np.put_along_axis(chosen, rows[scores[:, rows].argmax(axis=1)][:, None], True, axis=1)
    return chosen


def score_documents(session: Session, tokens: Tokens, keep: int = 0) -> Iterator[tuple[IntArray, Table]]:
    """Scores (documents of the batch, L) of all documents, batch by batch, with which documents they are.

    They are sparse, with so many of a document's best scores, where `keep` says so, or is 0 and there are very many
    labels: no table of all scores is made then. The device computes the next batch while the scores of the last are
    looked at. Every rank reads its part of each batch and gets the scores of all.
    """
    session.model.eval()
    labels = sum(map(len, session.model.levels))
    most = most_kept(keep, labels)
    waiting: tuple[IntArray, Sequence[Tensor]] | None = None
    for documents, batch in reading(session, tokens):
        with session.reading(), session.tf32(), session.autocast():
            found = [session.ranks.whole(each, documents) for each in _read(session.model, batch, most)]
        if waiting:
            yield waiting[0], _table(waiting[1], labels)
        waiting = documents, found
    if waiting:
        yield waiting[0], _table(waiting[1], labels)


def _read(model: HTCModel, batch: Batch | Packed, most: int) -> Sequence[Tensor]:
    """All scores (B, L), or the best and the labels they are of: (B, most) each."""
    return model.best(batch, most) if most else (model.scores(model(batch).logits),)


def _table(found: Sequence[Tensor], labels: int) -> Table:
    scores = found[0].float().cpu().numpy()
    return scores if len(found) == 1 else best_table(scores, found[1].cpu().numpy(), labels)


def reading(session: Session, tokens: Tokens) -> Iterator[tuple[IntArray, Batch | Packed]]:
    """All documents in batches, longest first, with which documents they are; on the device, this rank's part."""
    ranks = session.ranks
    if not session.packed:
        for documents in reading_order(tokens.lengths, READ_BATCH * ranks.count):
            yield documents, to_device(collate(tokens, None, ranks.part(documents), session.pad), session.device)
        return
    resident = Resident(tokens, None, session.pad, session.device)
    for documents in reading_order(tokens.lengths, 0, READ_TOKENS * ranks.count):
        mine = ranks.part(documents)
        yield documents, resident.packed(move(torch.from_numpy(mine), session.device), resident.size(mine))
