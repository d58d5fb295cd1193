"""HillClassifier: what people hold. It learns from texts and labels, predicts, evaluates, saves and loads."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch

from hill.data import Documents, read_data
from hill.data.cache import cached_tokens
from hill.data.tokens import Tokens, join_tokens
from hill.data.windows import WindowConfig, score_windows
from hill.decode import DecodeConfig
from hill.disk import make_folder
from hill.errors import ConfigError, DataError
from hill.explain import Explanation, explain
from hill.hub import Estimator, training_facts
from hill.hub.labels import is_matrix, make_documents
from hill.models import MODELS
from hill.models.text import start_text
from hill.predictor import Scored, check_texts
from hill.settings import Groups, at_least, document, make, one_of
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train import Session, Split, TrainConfig
from hill.train.optim import freeze_layers
from hill.train.run import Fitted, Report, run, seed_everything
from hill.train.scoring import score_documents
from hill.train.store import Stored, load_stored
from hill.train.warm import Warmed, build_warm

GROUPS = ("model", "train", "data", "decode")


@dataclass(frozen=True)
class DataConfig:
    """How documents are read."""

    max_length: int = 512
    """Most tokens of a text; longer ones are cut. Never more than the encoder can read."""
    dev_share: float = 0.1
    """Share of the training documents that becomes dev where there is none."""
    windows: int = 0
    """Prediction: windows of a long text that are read at most; 0 to cut it. Training reads the first."""
    overlap: int = 32
    """Tokens that a window has in common with the one before it, at least."""
    pool: str = "mean"
    """The score of a text of several windows: mean, of their logits, or max."""

    def __post_init__(self) -> None:
        at_least(self.max_length, 4, "data.max_length")
        WindowConfig(self.windows, self.overlap, self.pool)
        if not 0 < self.dev_share < 1:
            raise ConfigError(f"data.dev_share is {self.dev_share}; expected a share between 0 and 1")


class HillClassifier(Estimator):
    """Classifies texts into a taxonomy; a scikit-learn estimator whose samples are texts.

    Nothing is read or checked before it is needed, as scikit-learn wants it: a wrong taxonomy or setting is an error of
    `fit`, or of whatever asks for one of them first.

    Args:
        taxonomy: the labels, as a `Taxonomy` or a file.
        model: the name of a model: hill, or a rival.
        settings: settings by group, such as {"train": {"epochs": 3}}; what is not given has its default.
    """

    GROUPS = GROUPS
    DERIVED = (
        *("taxonomy", "name", "model_config", "train_config", "data_config", "decode_config"),
        *("thresholds", "calibrator", "metrics", "noted"),
    )
    name: str
    model_config: Any
    train_config: TrainConfig
    data_config: DataConfig
    warmed: Warmed | None = None
    """Where labels and weights started from, after a training that began with those of another model."""

    def __init__(
        self, taxonomy: Taxonomy | str | os.PathLike[str], model: str = "hill", settings: Groups | None = None
    ) -> None:
        self._given: dict[str, Any] = {"taxonomy": taxonomy, "model": model, "settings": settings}
        self._session: Session | None = None
        self._stored: Stored | None = None

    def _derive(self) -> None:
        taxonomy, model = self._given["taxonomy"], self._given["model"]
        configs = self._configs(model, self._given["settings"])
        self.taxonomy = taxonomy if isinstance(taxonomy, Taxonomy) else read_taxonomy(taxonomy)
        self.name = model
        self.model_config, self.train_config, self.data_config, self.decode_config = configs
        self.thresholds = self.calibrator = None
        self.metrics, self.noted = {}, {}

    def fit(
        self,
        texts: Sequence[str] | str | os.PathLike[str],
        labels: Any = None,
        out: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from texts and the labels of each, or from a data file or folder.

        Labels are ids, names or paths, some for each text or just one; or a matrix (texts, L) as `indicator` makes it,
        and then `predict` gives a matrix too.
        """
        self._begin()
        if isinstance(texts, str | os.PathLike):
            data = read_data(texts, self.taxonomy)
        else:
            data = {"train": make_documents(texts, labels, self.taxonomy)}
        with TemporaryDirectory() as scratch:
            for _ in self.training(data, Path(out) if out else Path(scratch)):
                pass
        self._matrix = is_matrix(labels)
        return self

    def training(
        self, data: dict[str, Documents], out: Path, resume: bool = False, tensorboard: bool = False
    ) -> Iterator[Report]:
        """Learn, yielding as it goes; log and checkpoints go to `out`, from which a killed training resumes."""
        self._begin()
        train, dev = self._splits(data)
        make_folder(out)
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
        self.tune(self._score(check.tokens), check.labels)
        self.metrics = self.measure(self._score(check.tokens), check.labels) | {"split": "dev"}
        self.noted = self._note(data | {"train": train, "dev": dev}, held_out="dev" not in data)

    def _begin(self) -> None:
        """Forget what was learned before: a second training starts from the parameters, as the first did."""
        if self._session is not None:
            self._session = self._stored = None
            self._forget()

    def _note(self, splits: dict[str, Documents], held_out: bool) -> dict[str, Any]:
        """What the model card will say of this training."""
        dev = {key: value for key, value in self.metrics.items() if key not in ("levels", "split")}
        used = {name: splits[name] for name in ("train", "dev", "test") if splits.get(name)}
        return training_facts(used, held_out) | {"dev": dev, "epochs": self._running.progress.history}

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
        if self.train_config.warm_start:
            old = load_stored(Path(self.train_config.warm_start))
            model, tokenizer, self.warmed = build_warm(old, train, self.taxonomy, self.model_config)
        else:
            kind = MODELS[self.name]
            text, tokenizer = start_text(self.model_config, train.texts)
            assets = kind.prepare(train, self.taxonomy, self.model_config, tokenizer)
            model = kind(text, self.taxonomy, self.model_config, assets)
            model.start()
        freeze_layers(model.text, self.train_config.freeze)
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

    @property
    def windows(self) -> WindowConfig:
        """How texts longer than that are read."""
        data = self.data_config
        return WindowConfig(data.windows, data.overlap, data.pool)

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
            found.append(Split(join_tokens(parts), documents.labels, documents.ids))
        return found

    def explain(
        self, text: str, labels: Iterable[str] | None = None, method: str = "integrated", steps: int = 0
    ) -> Explanation:
        """What each word of a text adds to its labels, or to these; see `hill.explain.explain`."""
        return explain(self, text, labels, method, steps)

    def scores(self, texts: Sequence[str]) -> Iterator[Scored]:
        """The model's own scores between 0 and 1 of every text, a batch at a time, the longest texts first."""
        return score_windows(
            list(check_texts(texts)),
            self.stored.tokenizer,
            self.max_length,
            self.windows,
            self._score,
        )

    def _score(self, tokens: Tokens) -> Iterator[Scored]:
        return score_documents(self._running, tokens, self.decode_config.keep)

    @classmethod
    def restore(cls, stored: Stored, device: str) -> Self:
        """The classifier that has this model, on a device."""
        settings = {group: dict(values) for group, values in stored.settings.items()}
        settings["train"]["device"] = device
        classifier = cls(stored.taxonomy, stored.name, settings)
        classifier._hold(stored)
        return classifier

    @staticmethod
    def _configs(model: Any, settings: Groups | None) -> tuple[Any, ...]:
        one_of(model, MODELS, "model")
        given = settings or {}
        if unknown := sorted(given.keys() - {*GROUPS}):
            raise ConfigError(f"unknown group of settings '{unknown[0]}'; expected {', '.join(GROUPS)}")
        kinds: tuple[type, ...] = (MODELS[model].Config, TrainConfig, DataConfig, DecodeConfig)
        return tuple(make(kind, given.get(group, {}), group) for group, kind in zip(GROUPS, kinds, strict=True))

    def __sklearn_is_fitted__(self) -> bool:
        return self._session is not None

    def __getstate__(self) -> dict[str, Any]:
        """All but the optimiser, which is twice the weights and of no use after training."""
        return self.__dict__ | {"_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._stored is not None:
            self._hold(self._stored)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device is '{name}'; expected auto, cpu or cuda") from None
