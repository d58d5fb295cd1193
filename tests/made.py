"""Small models for tests: real ones on a tiny encoder, and blank ones for what needs no weights."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from hill.data.batches import DeviceDocuments, collate
from hill.data.documents import label_documents
from hill.data.tokens import Tokens, tokenize
from hill.encoders import RCNN, Transformer
from hill.models import MODELS
from hill.models.base import new_text_encoder
from hill.models.inference import SavedModel
from hill.settings import make, to_dict
from hill.taxonomy import Taxonomy
from hill.types import Batch, Packed
from tests.conftest import animals_taxonomy, toy_documents

DROPOUTS = ("dropout", "readout_dropout")


@dataclass
class Made:
    """A model with 16 documents that it was started from; every dropout is off, so that a step is a function."""

    model: Any
    batch: Batch
    stored: SavedModel


def make_model(name: str, settings: dict[str, Any], encoder: Path) -> Made:
    """A model of this name and these settings, on a tiny encoder, for the animals."""
    kind, taxonomy = MODELS[name], animals_taxonomy()
    texts, labels = toy_documents(16, seed=0)
    documents = label_documents(texts, labels, taxonomy)
    off = {key: 0.0 for key in DROPOUTS if hasattr(kind.Config, key)}
    config = make(kind.Config, {"encoder": str(encoder), "pooling": "mean", **off, **settings}, "model")
    torch.manual_seed(1)
    text, tokenizer = new_text_encoder(config, texts)
    if isinstance(text, RCNN):
        text.word_dropout.p = 0.0
    model = kind(text, taxonomy, config, kind.prepare(documents, taxonomy, config, tokenizer))
    batch = collate(tokenize(texts, tokenizer, 32), documents.labels, np.arange(16), text.pad)
    return Made(model, batch, SavedModel(name, model, taxonomy, tokenizer, {"model": to_dict(config)}))


def packed(batch: Batch) -> Packed:
    """The documents of a padded batch, packed."""
    documents = [ids[mask > 0].numpy() for ids, mask in zip(batch.ids, batch.mask, strict=True)]
    starts = np.cumsum([0, *map(len, documents)])
    labels = None if batch.labels is None else csr_array(batch.labels.numpy())
    resident = DeviceDocuments(Tokens(np.concatenate(documents), starts), labels, 0, torch.device("cpu"))
    numbers = np.arange(len(documents))
    return resident.packed(torch.from_numpy(numbers), resident.size(numbers))


def blank_model(name: str, taxonomy: Taxonomy, width: int, settings: dict[str, Any]) -> Any:
    """A model on an encoder of this width without any weights or words, for what depends on neither."""
    encoder = torch.nn.Module()
    encoder.config = SimpleNamespace(hidden_size=width)  # type: ignore[assignment]
    kind = MODELS[name]
    config = make(kind.Config, settings, "model")
    documents = label_documents(["a text"], [[taxonomy[0].id]], taxonomy)
    assets = kind.prepare(documents, taxonomy, config, Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")))
    return kind(Transformer(encoder, "cls", 0.1), taxonomy, config, assets)
