"""Scores of documents with a model in training or trained, and every metric of a split."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hill.data.batches import collate, move, reading_order, to_device
from hill.data.resident import Resident
from hill.data.tokens import Tokens
from hill.metrics import Scorer
from hill.models import HTCModel
from hill.taxonomy import Taxonomy
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
            scorer.update(split.labels[documents].toarray(), choose(session.model, scores), scores)
    return session.ranks.from_main(scorer.result() if session.ranks.is_main else {})


def choose(model: HTCModel, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Labels with a score above 0.5; with one softmax a level, the best of each level.

    With a conditional softmax, the path that is best from the roots down, and all labels with a score above 0.25, since
    the labels of a document with several paths share the probability. Decoding is tuned when the training is over.
    """
    if model.siblings is not None:
        device = model.siblings.child.device
        return model.siblings.choose(torch.from_numpy(scores).to(device)).cpu().numpy()
    if model.config.loss != "softmax":
        return scores > 0.5
    chosen = np.zeros(scores.shape, dtype=bool)
    for rows in (level.cpu().numpy() for level in model.levels):
        np.put_along_axis(chosen, rows[scores[:, rows].argmax(axis=1)][:, None], True, axis=1)
    return chosen


def score_documents(session: Session, tokens: Tokens) -> Iterator[tuple[IntArray, npt.NDArray[np.float32]]]:
    """Scores (documents of the batch, L) of all documents, batch by batch, with which documents they are.

    The device computes the next batch while the scores of the last are looked at. Every rank reads its part of each
    batch and gets the scores of all.
    """
    session.model.eval()
    waiting: tuple[IntArray, Tensor] | None = None
    for documents, batch in reading(session, tokens):
        with torch.inference_mode(), session.tf32(), session.autocast():
            scores = session.ranks.whole(session.model.scores(session.model(batch).logits), documents)
        if waiting:
            yield waiting[0], waiting[1].cpu().numpy()
        waiting = documents, scores
    if waiting:
        yield waiting[0], waiting[1].cpu().numpy()


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
