"""HillClassifier: what people hold. It learns from texts and labels, predicts, evaluates, saves and loads."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from hill.data import Documents, read_data
from hill.data.cache import cached_tokens
from hill.data.documents import label_documents
from hill.data.tokens import join_tokens, tokenize
from hill.decode import DecodeConfig
from hill.errors import ConfigError, DataError
from hill.models import MODELS
from hill.models.text import start_text
from hill.predictor import Predictor, Scored, check_texts
from hill.settings import Groups, at_least, document, make, one_of
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train import Session, Split, TrainConfig
from hill.train.files import read_json
from hill.train.loop import score_documents
from hill.train.optim import freeze_layers
from hill.train.run import Fitted, Report, run, seed_everything
from hill.train.store import Stored, load_stored

GROUPS = ("model", "train", "data", "decode")


@dataclass(frozen=True)
class DataConfig:
    """How documents are read."""

    max_length: int = 512
    """Most tokens of a text; longer ones are cut. Never more than the encoder can read."""
    dev_share: float = 0.1
    """Share of the training documents that becomes dev where there is none."""

    def __post_init__(self) -> None:
        at_least(self.max_length, 4, "data.max_length")
        if not 0 < self.dev_share < 1:
            raise ConfigError(f"data.dev_share is {self.dev_share}; expected a share between 0 and 1")


class HillClassifier(Predictor):
    """Classifies texts into a taxonomy.

    Args:
        taxonomy: the labels, as a `Taxonomy` or a file.
        model: the name of a model: hill, or a rival.
        settings: settings by group, such as {"train": {"epochs": 3}}; what is not given has its default.
    """

    def __init__(
        self, taxonomy: Taxonomy | str | os.PathLike[str], model: str = "hill", settings: Groups | None = None
    ) -> None:
        one_of(model, MODELS, "model")
        self.taxonomy = taxonomy if isinstance(taxonomy, Taxonomy) else read_taxonomy(taxonomy)
        self.name = model
        given = settings or {}
        self.model_config = make(MODELS[model].Config, given.get("model", {}), "model")
        self.train_config = make(TrainConfig, given.get("train", {}), "train")
        self.data_config = make(DataConfig, given.get("data", {}), "data")
        self.decode_config = make(DecodeConfig, given.get("decode", {}), "decode")
        self.metrics: dict[str, Any] = {}
        self.thresholds = None
        self._session: Session | None = None
        self._stored: Stored | None = None

    def fit(
        self,
        texts: Sequence[str] | str | os.PathLike[str],
        labels: Iterable[Iterable[str]] | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> HillClassifier:
        """Learn from texts and the labels of each (ids, names or paths), or from a data file or folder."""
        if isinstance(texts, str | os.PathLike):
            data = read_data(texts, self.taxonomy)
        else:
            data = {"train": label_documents(check_texts(texts), list(labels or []), self.taxonomy)}
        with TemporaryDirectory() as scratch:
            for _ in self.training(data, Path(out) if out else Path(scratch)):
                pass
        return self

    def training(
        self, data: dict[str, Documents], out: Path, resume: bool = False, tensorboard: bool = False
    ) -> Iterator[Report]:
        """Learn, yielding as it goes; log and checkpoints go to `out`, from which a killed training resumes."""
        train, dev = self._splits(data)
        out.mkdir(parents=True, exist_ok=True)
        self._start(train)
        learn, check = yield from self._tokenise(train, dev)
        facts = {
            "model": self.name,
            "settings": self.settings(),
            "documents": [len(learn), len(check)],
            "tokens": [int(split.tokens.ids.sum(dtype=np.int64)) for split in (learn, check)],
            "labels": self.taxonomy.ids,
        }
        yield from run(self._running, learn, check, self.taxonomy, out, facts, resume, tensorboard)
        self.tune(score_documents(self._running, check.tokens), check.labels)
        self.metrics = self.measure(score_documents(self._running, check.tokens), check.labels)

    def _splits(self, data: dict[str, Documents]) -> tuple[Documents, Documents]:
        train = data.get("train") or data.get("data")
        if not train:
            raise DataError("there is nothing to train on; expected a train split with at least one document")
        if dev := data.get("dev"):
            return train, dev
        return train.split(self.data_config.dev_share, self.train_config.seed)

    def _start(self, train: Documents) -> None:
        """Build the model from taxonomy, encoder, settings and what it must know of the training documents."""
        seed_everything(self.train_config.seed)
        kind = MODELS[self.name]
        text, tokenizer = start_text(self.model_config, train.texts)
        assets = kind.prepare(train, self.taxonomy, self.model_config, tokenizer)
        model = kind(text, self.taxonomy, self.model_config, assets)
        freeze_layers(text, self.train_config.freeze)
        self._hold(Stored(self.name, model, self.taxonomy, tokenizer, self.settings()))

    def _hold(self, stored: Stored) -> None:
        self._stored = stored
        self._session = Session(stored.model, self.train_config, _device(self.train_config.device))

    @property
    def _running(self) -> Session:
        if self._session is None:
            raise ConfigError("the classifier has not learned anything yet; call fit or load first")
        return self._session

    @property
    def stored(self) -> Stored:
        """The model with what it is used with."""
        if self._stored is None:
            raise ConfigError("the classifier has not learned anything yet; call fit or load first")
        return replace(self._stored, settings=self.settings())

    @property
    def max_length(self) -> int:
        """Most tokens of a text that are read."""
        return min(self.data_config.max_length, self.stored.model.text.longest)

    def settings(self) -> Groups:
        """All settings by group, defaults included."""
        configs = (self.model_config, self.train_config, self.data_config, self.decode_config)
        return {group: document(config) for group, config in zip(GROUPS, configs, strict=True)}

    def _tokenise(self, *splits: Documents) -> Generator[Fitted, None, list[Split]]:
        """Splits as the model reads them, yielding how many documents are done."""
        found, done, total = [], 0, sum(map(len, splits))
        for documents in splits:
            parts = []
            for part in cached_tokens(documents.texts, self.stored.tokenizer, self.max_length):
                parts.append(part)
                done += len(part)
                yield Fitted("tokenising", done, total)
            found.append(Split(join_tokens(parts), documents.labels))
        return found

    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        """The model's own scores between 0 and 1 of every text, a batch at a time, the longest texts first."""
        return score_documents(self._running, tokenize(check_texts(texts), self.stored.tokenizer, self.max_length))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that predicting needs to a folder, whole or not at all."""
        documents = {"thresholds.json": self.thresholds_document(), "metrics.json": self.metrics}
        self.stored.save(Path(folder), documents)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> HillClassifier:
        """The classifier that `save` wrote."""
        stored = load_stored(Path(folder))
        settings = {group: dict(values) for group, values in stored.settings.items()}
        settings["train"]["device"] = device
        classifier = cls(stored.taxonomy, stored.name, settings)
        classifier.set_thresholds(read_json(Path(folder) / "thresholds.json"))
        classifier.metrics = read_json(Path(folder) / "metrics.json")
        classifier._hold(stored)
        return classifier


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device is '{name}'; expected auto, cpu or cuda") from None
