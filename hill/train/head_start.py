"""What is computed before the first step: vectors of a frozen encoder, a model without steps, or a head start.

The head start fits structure and head on vectors of the untrained encoder. Embedding the texts once is far cheaper than
an epoch of fine-tuning, and a head that starts from class centroids gives the encoder useful gradients from the first
step. With many labels only the centroids are used: fitting structure and head would be as expensive as fine-tuning.
"""

import hashlib
from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hill.data.batches import batch_labels
from hill.data.cache import read_arrays, write_arrays
from hill.data.tokens import MIN_CACHED
from hill.errors import ConfigError
from hill.models import VectorModel
from hill.train.trainer import Session, Split, StageProgress
from hill.types import MANY_LABELS

SHARPNESS = 10.0
"""How much one unit of cosine with the centroid of a label adds to its initial logit."""
HEAD_BATCH = 256
HEAD_LR = 3e-3


def fit_before_steps(session: Session, data: Split) -> Iterator[StageProgress]:
    """Fit a model that has no steps, or give the model a head start."""
    model, config = session.model, session.config
    if model.has_solver:
        for done, total in model.fit(data.tokens, data.labels, config.seed):
            yield StageProgress("fitting", done, total)
    elif isinstance(model, VectorModel) and model.vector_only and model.text.pretrained:
        if config.has_head_start:
            yield from head_start(session, model, data)
    elif config.head_start == "on":
        raise ConfigError("train.head_start is 'on', but this model does not support a head start; use auto or off")


def encode_once(session: Session, *splits: Split) -> Generator[StageProgress, None, list[Split]]:
    """Add the vectors of a frozen encoder to splits; they are cached on disk by content, encoder and precision."""
    inference, text, encoded = session.inference, session.model.text, []
    digest = hashlib.sha256(f"1 {text.pooling} {inference.bf16} {inference.packed}".encode())
    for name, weight in sorted(text.state_dict().items()):
        digest.update(f"{name} {tuple(weight.shape)} ".encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    done, total = 0, sum(map(len, splits))
    for split in splits:
        own = digest.copy()
        for part in (split.tokens.ids.astype(np.int32), split.tokens.starts):
            own.update(part.tobytes())
        if cached := read_arrays("vectors", own.hexdigest()):
            vectors = torch.from_numpy(cached["vectors"])
            done += len(split)
            yield StageProgress("encoding", done, total)
        else:
            vectors = torch.empty(len(split), text.width)
            for count in fill_vectors(session, split, vectors):
                done += count
                yield StageProgress("encoding", done, total)
            if session.context.is_main and len(split) >= MIN_CACHED:
                write_arrays("vectors", own.hexdigest(), {"vectors": vectors.numpy()})
        encoded.append(replace(split, vectors=vectors.to(session.device)))
    return encoded


def fill_vectors(session: Session, split: Split, vectors: Tensor) -> Iterator[int]:
    """Write the vectors of the encoder into (documents, D), on the CPU; yields the number of documents per batch."""
    for documents, batch in session.inference.vectors(split.tokens):
        vectors[torch.from_numpy(documents)] = batch.cpu()
        yield len(documents)


def head_start(session: Session, model: VectorModel, data: Split) -> Iterator[StageProgress]:
    """Embed the texts, start the head from centroids and fit it; yields the number of documents done."""
    epochs = session.config.head_epochs if data.labels.shape[1] <= MANY_LABELS else 0
    done, total = len(data), len(data) + epochs * len(data)
    if data.vectors is None:
        vectors, done = torch.empty(len(data), model.text.width), 0
        for count in fill_vectors(session, data, vectors):
            done += count
            yield StageProgress("head start", done, total)
        vectors = vectors.to(session.device)
    else:
        vectors = data.vectors
    start_from_centroids(model, vectors, data, session.device)
    for size in fit_head(session, model, vectors, data) if epochs else ():
        done += size
        yield StageProgress("head start", done, total)


@torch.no_grad()
def start_from_centroids(model: VectorModel, vectors: Tensor, data: Split, device: torch.device) -> None:
    """Set the head rows to the mean direction of each label's documents and the biases to the label's frequency."""
    units = F.normalize(vectors - vectors.mean(dim=0), dim=1)
    sums = torch.from_numpy(data.labels.astype("float32").T @ units.cpu().numpy()).to(device)
    counts = torch.from_numpy(data.labels.sum(axis=0)).to(device)
    scale = vectors.norm(dim=1).mean()
    weight = SHARPNESS * F.normalize(sums, dim=1) / scale
    frequency = (counts + 0.5) / (len(data) + 1)
    bias = frequency.logit() if model.config.loss == "bce" else (1 - model.config.adjust) * frequency.log()
    model.start_head(weight, bias.float() - weight @ vectors.mean(dim=0))


def fit_head(session: Session, model: VectorModel, vectors: Tensor, data: Split) -> Iterator[int]:
    """Fit everything but the text encoder on its vectors; yields the number of documents of each step."""
    weights = [weight for name, weight in model.named_parameters() if not name.startswith("text.")]
    optimiser = torch.optim.AdamW(weights, lr=HEAD_LR, weight_decay=session.config.weight_decay)
    per_epoch = -(-len(data) // HEAD_BATCH)
    steps = session.config.head_epochs * per_epoch
    dropout = torch.nn.Dropout(model.config.dropout)
    model.train()
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(data))
        documents = order[step % per_epoch * HEAD_BATCH :][:HEAD_BATCH]
        for group in optimiser.param_groups:
            group["lr"] = HEAD_LR * (1 - step / steps)
        labels = batch_labels(data.labels, documents.numpy(), model.uses_label_lists).to(session.device)
        loss = model.classify(dropout(vectors[documents.to(session.device)]), labels).loss
        assert loss is not None
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        yield len(documents)
