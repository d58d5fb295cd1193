"""HillClassifier: what people hold. It learns from texts and labels, predicts, evaluates, saves and loads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hill.data import Documents, read_data
from hill.data.documents import label_documents
from hill.data.tokens import tokenize
from hill.decode import DecodeConfig, Decoder, ThresholdTuner
from hill.errors import ConfigError, DataError
from hill.metrics import Scorer
from hill.models import MODELS
from hill.models.text import start_text
from hill.settings import Groups, at_least, document, make, one_of
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train import Session, Split, TrainConfig
from hill.train.files import read_json
from hill.train.loop import score_documents
from hill.train.optim import freeze_layers
from hill.train.run import Report, run, seed_everything
from hill.train.store import Stored, load_stored
from hill.types import FloatArray, Prediction

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


class HillClassifier:
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
        self.thresholds: FloatArray | None = None
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
            data = {"train": label_documents(_checked(texts), list(labels or []), self.taxonomy)}
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
        learn, check = self._split(train), self._split(dev)
        facts = {
            "model": self.name,
            "settings": self.settings(),
            "documents": [len(learn), len(check)],
            "tokens": [int(split.tokens.ids.sum(dtype=np.int64)) for split in (learn, check)],
            "labels": self.taxonomy.ids,
        }
        yield from run(self._running, learn, check, self.taxonomy, out, facts, resume, tensorboard)
        if self.decode_config.tune != "off" and self.decode_config.strategy != "path":
            self._tune(check)
        self.metrics = self._evaluate(check)

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

    def settings(self) -> Groups:
        """All settings by group, defaults included."""
        configs = (self.model_config, self.train_config, self.data_config, self.decode_config)
        return {group: document(config) for group, config in zip(GROUPS, configs, strict=True)}

    def _split(self, documents: Documents) -> Split:
        return Split(self._tokens(documents.texts), documents.labels)

    def _tokens(self, texts: Sequence[str]) -> Any:
        session = self._running
        assert self._stored
        longest = min(self.data_config.max_length, session.model.text.longest)
        return tokenize(texts, self._stored.tokenizer, longest)

    def _tune(self, dev: Split) -> None:
        tuner = ThresholdTuner(Decoder(self.taxonomy, self.decode_config), len(self.taxonomy))
        for documents, scores in score_documents(self._running, dev.tokens):
            tuner.update(dev.labels[documents].toarray(), scores)
        self.decode_config = replace(self.decode_config, threshold=tuner.best())
        if self.decode_config.tune == "label":
            self.thresholds = tuner.best_by_label()

    def _decoder(self) -> Decoder:
        return Decoder(self.taxonomy, self.decode_config, self.thresholds)

    def _evaluate(self, split: Split) -> dict[str, Any]:
        decoder, scorer = self._decoder(), Scorer(self.taxonomy)
        raw = Scorer(self.taxonomy)
        for documents, scores in score_documents(self._running, split.tokens):
            gold = split.labels[documents].toarray()
            scorer.update(gold, decoder.decode(scores), scores)
            raw.update(gold, scores > 0.5)
        return scorer.result() | {"threshold": self.decode_config.threshold, **_raw(raw.result())}

    def evaluate(self, data: Documents | str | os.PathLike[str]) -> dict[str, Any]:
        """Every metric of the predictions for these documents; of a folder, of its test split."""
        if not isinstance(data, Documents):
            splits = read_data(data, self.taxonomy)
            data = splits.get("test") or next(iter(splits.values()))
        return self._evaluate(self._split(data))

    def predict_proba(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Scores (texts, L) between 0 and 1 that never rise on the way down the taxonomy."""
        decoder = self._decoder()
        found = np.zeros((len(texts), len(self.taxonomy)), dtype=np.float32)
        for documents, scores in score_documents(self._running, self._tokens(_checked(texts))):
            found[documents] = decoder.effective(scores)
        return found

    def predict(self, texts: Sequence[str]) -> list[list[str]]:
        """The label ids of each text, ancestors included, in the taxonomy's order."""
        return [list(prediction.labels) for prediction in self.predictions(texts)]

    def predict_paths(self, texts: Sequence[str]) -> list[list[tuple[str, ...]]]:
        """The paths of label ids of each text, from a root down to each most specific label."""
        return [list(prediction.paths) for prediction in self.predictions(texts)]

    def predictions(self, texts: Sequence[str]) -> list[Prediction]:
        """Labels, scores and paths of each text."""
        decoder = self._decoder()
        found: list[Prediction] = [Prediction((), (), ())] * len(texts)
        for documents, scores in score_documents(self._running, self._tokens(_checked(texts))):
            chosen, effective = decoder.decode(scores), decoder.effective(scores)
            for place, document_number in enumerate(documents.tolist()):
                found[document_number] = self._prediction(np.flatnonzero(chosen[place]), effective[place])
        return found

    def _prediction(self, rows: npt.NDArray[np.int64], scores: npt.NDArray[Any]) -> Prediction:
        chosen = set(rows.tolist())
        ends = [row for row in rows.tolist() if chosen.isdisjoint(self.taxonomy.children(row).tolist())]
        paths = [next(self.taxonomy.paths(row)) for row in sorted(ends, key=lambda row: -scores[row])]
        return Prediction(
            tuple(self.taxonomy.decode(rows)),
            tuple(float(scores[row]) for row in rows),
            tuple(tuple(self.taxonomy.decode(path)) for path in paths),
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that predicting needs to a folder, whole or not at all."""
        if self._stored is None:
            raise ConfigError("the classifier has not learned anything yet; call fit first")
        thresholds: dict[str, Any] = {"threshold": self.decode_config.threshold}
        if self.thresholds is not None:
            thresholds["labels"] = self.thresholds.tolist()
        documents = {"thresholds.json": thresholds, "metrics.json": self.metrics}
        replace(self._stored, settings=self.settings()).save(Path(folder), documents)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> HillClassifier:
        """The classifier that `save` wrote."""
        stored = load_stored(Path(folder))
        settings = {group: dict(values) for group, values in stored.settings.items()}
        settings["train"]["device"] = device
        classifier = cls(stored.taxonomy, stored.name, settings)
        found = read_json(Path(folder) / "thresholds.json")
        classifier.decode_config = replace(classifier.decode_config, threshold=found["threshold"])
        classifier.thresholds = np.array(found["labels"]) if "labels" in found else None
        classifier.metrics = read_json(Path(folder) / "metrics.json")
        classifier._hold(stored)
        return classifier


def _checked(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise DataError("texts is one string; expected a list of texts")
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"text {number} is {'empty' if isinstance(text, str) else repr(text)}; expected words")
    return texts


def _raw(result: dict[str, Any]) -> dict[str, float]:
    """What the scores alone give at 0.5, as the paper decodes them."""
    return {f"raw_{name}": result[name] for name in ("micro_f1", "macro_f1", "violations")}


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device is '{name}'; expected auto, cpu or cuda") from None
