"""HillClassifier, the main user-facing class: fit, predict, evaluate, save and load."""

from __future__ import annotations

import math
import os
import re
import reprlib
import threading
import time
from abc import ABCMeta
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
from scipy.sparse import csr_array, issparse
from torch import Tensor

from hill.card import TRAINING_FILE, ModelFacts, describe_training, make_card, public_settings
from hill.data import Documents, read_data
from hill.data.documents import as_list, check_label_sets, check_texts, describe_labels, join_splits, label_documents
from hill.data.seen import SEEN_FILE, Hashes, read_seen, seen_document, text_hashes
from hill.data.tokens import Tokens, cached_tokens, join_tokens, tokenize
from hill.data.windows import score_windows
from hill.decode import DecodeConfig, Mixture, fit_mixture, read_mixture
from hill.decode.tuning import FEW_DOCUMENTS
from hill.encoders.lora import add_adapters
from hill.encoders.transformer import encoder_shape
from hill.errors import CheckpointError, ConfigError, DataError, HillError, counted, enough_memory, need
from hill.explain import Explanation, explain
from hill.io import CARD, as_path, check_model, read_object, unusable
from hill.models import MODELS
from hill.models.base import COUNTS_FILE, new_text_encoder
from hill.models.inference import Inference, SavedModel, find_device, load_saved
from hill.predictor import Predictor, ScoredBatch
from hill.presets import Plan, choose, describe, fit_to_time
from hill.settings import Groups, by_group, check_at_least, check_one_of, find_setting, make, to_dict
from hill.sparse import Matrix, assemble_rows, max_entries
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train import Session, Split, TrainConfig
from hill.train.checkpoint import check_resume, remove_training, run, saved_settings, start_training, training_facts
from hill.train.config import PRECISIONS
from hill.train.distributed import current_context
from hill.train.head_start import encode_once
from hill.train.progress import duration
from hill.train.timing import measure_speed
from hill.train.trainer import Notice, StageProgress, Started, TimeLimit, TrainingEvent, freeze_layers
from hill.train.warm_start import ALL, WarmStartReport, build_warm
from hill.types import IntArray

Config = TypeVar("Config")
PARAMETERS = frozenset(("taxonomy", "model", "settings", "preset"))
"""The parameters of `HillClassifier` that are not settings."""
GROUPS = ("model", "train", "data", "decode")
"""The groups of settings."""
HUB_FILES = ["*.json", "*.safetensors", CARD]
"""Files that are downloaded from the hub: none of them is ever executed."""
MAX_DEV_SCORES = 2**27
"""Scores of dev that are kept in memory (512 MiB); with more, dev is scored again after tuning and nothing is mixed."""
ENSEMBLE_FILE = "ensemble.json"
MEMBER_FOLDER = re.compile(r"member-\d{1,3}")
DECODING = ("decode_config", "thresholds", "calibrator", "decode_note", "metrics")
"""Attributes that tuning on dev sets."""
FEW_TRAINING_DOCUMENTS = 20
"""With fewer training documents, training warns."""
MEMBER_SECONDS, TIMED_SECONDS = 1800.0, 5.0
"""Maximum time for the linear model without a time limit, and seconds after which its time is estimated."""
MEMBER_SHARE = 0.3
"""Share of a time limit that fitting the linear model may take."""
MEASURED_SHARE = 0.03
"""Share of a time limit in which the speed is measured, on up to `TIMED_DOCUMENTS` training documents."""
TIMED_DOCUMENTS = 256


@dataclass(frozen=True)
class DataConfig:
    """How documents are read."""

    max_length: int = 512
    """Maximum number of tokens per text, at most what the encoder supports; longer texts are truncated."""
    dev_share: float = 0.1
    """Share of the training documents that is held out as dev if there is no dev split."""
    max_test: int = 0
    """Documents of test that are scored after training: a random sample of this size; 0: all. A time limit sets it."""
    max_dev: int = 0
    """Dev documents that are used at most, a random sample; 0: all."""
    test_share: float = 0.1
    """`hill train` with a single file without splits: share of its documents that is held out as test; 0 for none."""
    descriptions: bool = False
    """Whether names of labels, and sentences of their descriptions, are further training documents."""
    windows: int = 0
    """Prediction: maximum number of windows per long text; 0 to truncate it. Training reads the first window."""

    def __post_init__(self) -> None:
        check_at_least(self.max_length, 4, "data.max_length")
        check_at_least(self.windows, 0, "data.windows")
        check_at_least(self.max_dev, 0, "data.max_dev")
        check_at_least(self.max_test, 0, "data.max_test")
        if not 0 < self.dev_share < 1:
            raise ConfigError(f"data.dev_share is {self.dev_share}; expected a share between 0 and 1")
        if not 0 <= self.test_share < 1:
            raise ConfigError(f"data.test_share is {self.test_share}; expected 0, or a share below 1")


def config_types(model: Any) -> dict[str, type]:
    """The dataclass of each group of settings, for the model of this name."""
    check_one_of(model, MODELS, "model")
    return {"model": MODELS[model].Config, "train": TrainConfig, "data": DataConfig, "decode": DecodeConfig}


HELP = (
    *("fit", "predict", "predict_proba", "predict_paths", "predict_indicator", "predictions", "explain"),
    *("evaluate", "score", "indicator", "classes_", "taxonomy", "settings", "get_params", "set_params"),
    *("save", "load", "save_pretrained", "from_pretrained", "push_to_hub", "training"),
)
"""What `help(HillClassifier)` shows."""


class _ShortHelp(ABCMeta):
    """`help` shows the names that `dir` of the class lists; the rest is for other modules of this package."""

    def __dir__(cls) -> list[str]:
        return list(HELP)


class HillClassifier(Predictor, ModelHubMixin, metaclass=_ShortHelp):
    """Classifies texts into a taxonomy; a scikit-learn estimator whose samples are texts.

    As in scikit-learn, the constructor checks nothing: a wrong taxonomy or setting is an error of `fit`, or of the
    first attribute that needs it.

    Args:
        taxonomy: the labels, as a `Taxonomy` or the path of a taxonomy file.
        model: the name of a model, such as hill.
        settings: settings by group, such as {"train": {"epochs": 3}}; they override those of the preset.
        preset: auto, paper or fast: settings that `fit` chooses from the data and the device (docs/presets.md); None
            for the defaults of all settings.
        keywords: settings by name, such as epochs=3 or encoder="mpnet"; they override `settings`. A name that two
            groups have is written with its group, such as decode__keep.

    >>> HillClassifier("taxonomy.tsv", epochs=3, encoder="mpnet").train_config.epochs
    3
    """

    metrics: dict[str, Any]
    """The metrics of the trained model on test, or on dev if there is no test split."""
    training_record: dict[str, Any]
    """Facts about the training for the model card."""
    members: Sequence[HillClassifier] = ()
    own_decoding: dict[str, Any]
    """Decoding that was tuned for the model without its members, as `thresholds_document` describes it."""
    warm_start_report: WarmStartReport | None = None
    """Which labels and weights came from another model, after a warm start."""

    def __init__(
        self,
        taxonomy: Taxonomy | str | os.PathLike[str],
        model: str = "hill",
        settings: Groups | None = None,
        preset: str | None = "auto",
        **keywords: Any,
    ) -> None:
        self._params: dict[str, Any] = {"taxonomy": taxonomy, "model": model, "settings": settings, "preset": preset}
        self._params |= keywords
        self._chosen: Groups = {}
        self._stored: SavedModel | None = None
        self._inference: Inference | None = None
        self._session: Session | None = None

    # Taxonomy and settings

    @cached_property
    def taxonomy(self) -> Taxonomy:  # type: ignore[override]
        """The labels."""
        self.settings()  # report a wrong setting before a file is read
        given = self._params["taxonomy"]
        if isinstance(given, Taxonomy):
            return given
        return read_taxonomy(as_path(given, "taxonomy", "a Taxonomy or the path of a taxonomy file"))

    @cached_property
    def name(self) -> str:
        """The name of the model."""
        check_one_of(self._params["model"], MODELS, "model")
        return str(self._params["model"])

    @cached_property
    def model_config(self) -> Any:
        """The settings of the model."""
        return self._make_config(MODELS[self.name].Config, "model")

    def _given(self) -> Groups:
        """The settings that the user gave: those of `settings`, and keywords, which override them."""
        groups, given = by_group(self._params["settings"]), dict[tuple[str, str], str]()
        for name in (name for name in self._params if name not in PARAMETERS):
            group, key = setting = self._setting(name)
            if setting in given:
                raise ConfigError(f"{group}.{key} is given as '{given[setting]}' and as '{name}'; leave one out")
            given[setting] = name
            groups.setdefault(group, {})[key] = self._params[name]
        return groups

    def _setting(self, name: str) -> tuple[str, str]:
        """The group and the key of a setting that was given as a keyword."""
        return find_setting(name, config_types(self._params["model"]))

    def _make_config(self, kind: type[Config], group: str) -> Config:
        """Check the settings of a group, and make its dataclass."""
        _ = self.name  # checks it
        given = self._given()
        if unknown := sorted(map(str, given.keys() - {*GROUPS})):
            raise ConfigError(f"unknown group of settings '{unknown[0]}'; expected {', '.join(GROUPS)}")
        return make(kind, self._chosen.get(group, {}) | given.get(group, {}), group)

    @cached_property
    def train_config(self) -> TrainConfig:
        """The settings of training."""
        return self._make_config(TrainConfig, "train")

    @cached_property
    def data_config(self) -> DataConfig:
        """The settings of reading documents."""
        return self._make_config(DataConfig, "data")

    @cached_property
    def decode_config(self) -> DecodeConfig:  # type: ignore[override]
        """The settings of decoding; after training, with the values that were chosen on dev."""
        return self._make_config(DecodeConfig, "decode")

    def settings(self) -> Groups:
        """All settings by group, defaults included; after `fit` also those that the preset chose."""
        return {group: to_dict(getattr(self, f"{group}_config")) for group in GROUPS}

    def _reset(self) -> None:
        """Forget what was learned and what follows from the parameters."""
        for name in (
            *("taxonomy", "name", "thresholds", "calibrator", "members", "mixture", "own_decoding", "decode_note"),
            *("seen", "metrics", "training_record", "warm_start_report"),
        ):
            self.__dict__.pop(name, None)
        self._stored = self._inference = self._session = None
        self._set_chosen({})

    def _set_chosen(self, settings: Groups) -> None:
        """Use these settings of a preset where the user gave none."""
        self._chosen = settings
        for group in GROUPS:
            self.__dict__.pop(f"{group}_config", None)

    # Training

    def fit(
        self,
        texts: Sequence[str] | dict[str, Documents] | str | os.PathLike[str],
        labels: Any = None,
        out: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Train on texts and the labels of each, on a data file or folder, or on what `read_data` returns.

        Labels are ids, names or paths: a list of labels per text, or one label per text; or a 0/1 matrix (texts, L) as
        `indicator` makes it.
        """
        if self._stored is not None:
            self._reset()
        if isinstance(texts, dict) and labels is None:
            data = texts
        elif isinstance(texts, str | os.PathLike):
            if labels is not None:
                raise DataError(
                    f"texts is {reprlib.repr(texts)} and labels are given; expected a list of texts with their labels, "
                    "or a data file or folder without labels"
                )
            data = read_data(texts, self.taxonomy)
        else:
            data = {"train": make_documents(as_list(texts, "texts"), labels, self.taxonomy)}
        with TemporaryDirectory() as scratch:
            for _ in self.training(data, Path(scratch) if out is None else as_path(out, "out")):
                pass
        return self

    def training(self, data: dict[str, Documents], out: Path, resume: bool = False) -> Iterator[TrainingEvent]:
        """Train and yield events; log and checkpoints go to `out`, from which an interrupted training resumes."""
        start = time.monotonic()
        if self._stored is not None:
            self._reset()
        train, dev = self._split(data)
        known = data.get(ALL) or train  # a training that continues reads some documents more often than others
        self.seen = self._seen_texts([*known.texts, *dev.texts])
        device = find_device(self.train_config.device)  # errors must not leave a folder behind
        saved = saved_settings(out, self.name, self._preset) if resume else None
        notices = self._choose(train, device, saved, ALL in data)
        given = known
        if self.data_config.descriptions:
            labels = describe_labels(self.taxonomy, [known, dev, *filter(None, [data.get("test")])])
            train, known = (join_splits({"train": each, "labels": labels}) for each in (train, known))
        if resume:
            check_resume(out, self._facts(train, self._used_dev(dev)))
        start_training(out, resume)
        if len(given) < FEW_TRAINING_DOCUMENTS:
            notices.append(
                f"only {counted(len(given), 'training document')}: the model will hardly be of use; give hundreds, or "
                "at least ten per label"
            )
        yield from map(Notice, notices)
        config, member, reserved = self.train_config, None, 0.0
        limit = 60 * config.minutes
        if config.ensemble:
            fitting = self._fit_member(known, MEMBER_SHARE * limit if limit else MEMBER_SECONDS)
            member = BackgroundFit(fitting) if device.type == "cuda" else (yield from fitting)
        with enough_memory():
            session = self._start(known)
            if limit:
                yield StageProgress("measuring the speed", 0, 1)
                left, test = limit - (time.monotonic() - start), len(data.get("test", ()))
                plan = self._plan(session, train, len(dev), test, left, resume)
                if not resume:  # a resumed training keeps its settings; only the time of its end is planned again
                    notices.append(plan.reason)
                    yield Notice(plan.reason)
                reserved, session = plan.reserved, self._start(known)
        config = self.train_config
        dev = self._used_dev(dev)
        yield Started(self._opening(session, len(given), len(train), len(dev)), self.settings())
        splits = yield from self._tokenise(train, dev)
        if session.encodes_once:
            splits = yield from encode_once(session, *splits)
        train_split, dev_split = splits
        if limit:
            left = limit - reserved - (time.monotonic() - start)
            session.time_limit = TimeLimit(max(left, 1.0), reserved, left / config.steps if config.steps else 0.0)
        scored = None if config.evaluations == 1 else dev_split  # one score cannot select an epoch
        with enough_memory():
            yield from run(session, train_split, scored, self.taxonomy, out, self._facts(train, dev), resume)
        session.inference.trained = True
        if isinstance(member, BackgroundFit):
            fitted = member.wait()
            yield from member.notices
            member = fitted
        members, prior = [] if member is None else [member], None
        if config.ensemble and (started := self._cold_start()):
            members += started.members
            prior = self._start_mixture(started, len(members))
        self._tune_on_dev(dev, dev_split, members, prior)
        described = {"train": given, "dev": dev} | ({"test": data["test"]} if data.get("test") else {})
        self.training_record = describe_training(described, held_out="dev" not in data) | {
            "dev": {name: value for name, value in self.metrics.items() if name != "levels"},
            "epochs": session.progress.history,
            "preset": {"name": self._preset, "notices": notices},
            "decoding": self.decode_note,
        }
        self.metrics["split"] = "dev"
        self._session = None  # frees the optimiser

    @property
    def _preset(self) -> str:
        return self._params["preset"] or "none"

    def _used_dev(self, dev: Documents) -> Documents:
        """All documents of dev, or a sample of `data.max_dev`."""
        return dev.sample(self.data_config.max_dev) if self.data_config.max_dev else dev

    def _facts(self, train: Documents, dev: Documents) -> dict[str, Any]:
        """What must not change when this training is resumed."""
        return training_facts(self.name, self._preset, self.settings(), self.taxonomy, {"train": train, "dev": dev})

    def _opening(self, session: Session, n_train: int, n_read: int, n_dev: int) -> str:
        """What is trained, where and on what, with the final settings; an epoch reads `n_read` documents."""
        config = self.train_config
        steps = config.steps or config.epochs * math.ceil(math.ceil(n_read / config.batch_size) / config.accumulate)
        encoder = f" with the encoder {self.model_config.encoder}" if self.model_config.text == "transformer" else ""
        length = "" if session.model.has_solver else f", {counted(steps, 'step')}"
        limit = f", at most {duration(60 * config.minutes)}" if config.minutes else ""
        return (
            f"training {self.name}{encoder} on {session.device.type}: {counted(n_train, 'training document')}, "
            f"{counted(n_dev, 'dev document')}, {counted(len(self.taxonomy), 'label')}{length}{limit}"
        )

    def _choose(
        self, train: Documents, device: torch.device, saved: Groups | None, continued: bool = False
    ) -> list[str]:
        """Choose settings by the preset, or use those of the training that is resumed; returns the reasons."""
        preset, given = self._params["preset"], self._given()
        if saved is not None or preset is None:
            self._set_chosen(saved or {})
            return []
        config = self.model_config
        shape = encoder_shape(config.encoder) if config.text == "transformer" else (0, 0)
        started = is_cold_start(self.train_config.warm_start)
        facts = replace(describe(train, self.taxonomy, shape, device.type), continued=continued, started=started)
        choice = choose(preset, facts, {field.name for field in fields(config)}, given)
        if current_context().world_size > 1:  # ranks would measure different speeds and stop at different steps
            if given.get("train", {}).get("minutes"):
                raise ConfigError("a time limit needs a single process; leave out --minutes, or train without torchrun")
            choice.settings.get("train", {}).pop("minutes", None)
        self._set_chosen(choice.settings)
        return list(choice.reasons)

    def _fit_member(
        self, train: Documents, seconds: float
    ) -> Generator[StageProgress | Notice, None, HillClassifier | None]:
        """Fit a linear model as a member; None if it would take longer than this many seconds."""
        settings: Groups = {
            "train": {"seed": self.train_config.seed, "device": "cpu"},
            "decode": {"keep": self.decode_config.keep},
        }
        member = HillClassifier(self.taxonomy, "linear", settings, preset=None)
        model = member._start(train).model
        (split,) = yield from member._tokenise(train)
        first, start = 0, 0.0
        for done, total in model.fit(split.tokens, split.labels, self.train_config.seed):
            if not first:  # the first label waits for vectors, and maybe for the compiler
                first, start = done, time.monotonic()
            spent = time.monotonic() - start
            if spent > TIMED_SECONDS and (needed := spent / max(done - first, 1) * total) > seconds:
                yield Notice(f"the linear model would take {needed / 60:.0f} minutes; it is left out")
                return None
            yield StageProgress("linear model", done, total)
        member._session = None
        return member

    def _cold_start(self) -> HillClassifier | None:
        """The cold start that this training starts from: with few labels, its model of words still helps."""
        folder = Path(self.train_config.warm_start)
        if not is_cold_start(self.train_config.warm_start) or not (folder / ENSEMBLE_FILE).exists():
            return None
        started = HillClassifier.load(folder, device="cpu")
        return started if started.taxonomy == self.taxonomy else None

    def _start_mixture(self, started: HillClassifier, members: int) -> Mixture:
        """The prior of a mixture with a cold start: its own weights, and 0 for a linear model if there is one."""
        assert started.mixture is not None
        own, *words = started.mixture.weights
        rest = [np.zeros_like(own)] * (members - len(words))
        return Mixture(self.taxonomy, np.stack([own, *rest, *words]), started.mixture.bias)

    def fit_solver(self, train: Documents) -> Self:
        """Fit a model that has a solver, such as linear, on all these documents; decoding is not tuned."""
        model = self._start(train).model
        for _ in model.fit(
            tokenize(train.texts, self.stored.tokenizer, self.max_length), train.labels, self.train_config.seed
        ):
            pass
        self._session = None
        return self

    def _plan(self, session: Session, train: Documents, dev: int, test: int, seconds: float, resume: bool) -> Plan:
        """Measure the speed and choose settings with which the training ends in time."""
        sample = train.sample(max(TIMED_DOCUMENTS, 2 * self.train_config.batch_size))  # the first batch is slower
        tokens = tokenize(sample.texts, self.stored.tokenizer, self.max_length)
        speed = measure_speed(session, Split(tokens, sample.labels), MEASURED_SHARE * seconds)
        layers = encoder_shape(self.model_config.encoder)[0] if self.model_config.text == "transformer" else 0
        plan = fit_to_time(self.settings(), speed, tokens.lengths, layers, len(train), dev, test, seconds)
        if not resume:
            self._set_chosen({group: self._chosen.get(group, {}) | plan.settings.get(group, {}) for group in GROUPS})
        return plan

    def _tune_on_dev(
        self, dev: Documents, split: Split, members: Sequence[HillClassifier], prior: Mixture | None
    ) -> None:
        """Mix the scores with those of members, if there are any, then tune decoding and measure; all on dev."""
        per_document = max_entries(self.decode_config.keep, len(self.taxonomy)) or len(self.taxonomy)
        if len(dev) * per_document > MAX_DEV_SCORES:  # dev is scored twice instead of kept
            self.tune(self._score(split.inputs), split.labels)
            self.metrics = self.measure(self._score(split.inputs), split.labels)
            return
        scores = assemble_rows(self._score(split.inputs), (len(dev), len(self.taxonomy)))
        if not members:
            self._tune_and_measure(scores, split.labels)
            return
        all_scores = [scores, *(member.score_matrix(dev.texts) for member in members)]
        self._mix_if_better(members, all_scores, split.labels, prior)

    def _mix_if_better(
        self,
        members: Sequence[HillClassifier],
        scores: Sequence[Matrix],
        labels: csr_array[Any],
        prior: Mixture | None = None,
    ) -> None:
        """Mix scores of dev, the own first, with those of members; with enough documents, only if F1 is higher."""
        without = self._mix_with(members, scores, labels, prior)
        if labels.shape[0] >= FEW_DOCUMENTS and mean_f1(without["metrics"]) > mean_f1(self.metrics):
            self.members, self.mixture = (), None
            for name, value in without.items():
                setattr(self, name, value)
            self.decode_note += "; the linear model is left out: without it, the mean of micro and macro F1 is higher"

    def _tune_and_measure(self, scores: Matrix, labels: csr_array[Any]) -> None:
        """Tune decoding on all documents of dev and measure it there."""
        rows = np.arange(labels.shape[0])
        self.tune([(rows, scores)], labels)
        self.metrics = self.measure([(rows, scores)], labels)

    def _mix_with(
        self,
        members: Sequence[HillClassifier],
        scores: Sequence[Matrix],
        labels: csr_array[Any],
        prior: Mixture | None = None,
    ) -> dict[str, Any]:
        """Fit a mixture with members on scores of dev, the own first, and tune it.

        Returns the decoding of the own model alone, tuned on the same scores, and its metrics, by attribute.
        """
        untuned = self.decode_config
        self._tune_and_measure(scores[0], labels)
        alone = {name: getattr(self, name) for name in DECODING}
        self.own_decoding = self.thresholds_document()
        self.decode_config, self.thresholds, self.calibrator = untuned, None, None
        self.members, self.mixture = tuple(members), fit_mixture(self.taxonomy, scores, labels, prior)
        self._tune_and_measure(self.mixture(scores), labels)
        return alone

    @classmethod
    def ensemble(cls, folders: Sequence[str | os.PathLike[str]], documents: Documents, device: str = "auto") -> Self:
        """Load trained models and mix them into one classifier, with weights that are fitted on these documents.

        The documents must be new to all models. Members of a model that is an ensemble become members of this one.
        """
        if len(folders) < 2:
            raise ConfigError(f"an ensemble needs at least 2 models, not {len(folders)}")
        first, *others = (cls.load(folder, device) for folder in folders)
        for folder, other in zip(folders[1:], others, strict=True):
            if other.taxonomy != first.taxonomy:
                raise ConfigError(f"'{folder}' has another taxonomy than '{folders[0]}'; train both with the same one")
        documents.check(first.taxonomy)
        members: list[HillClassifier] = list(first.members)
        for other in others:
            members += [other, *other.members]
        config = DecodeConfig(keep=first.decode_config.keep)
        models: list[HillClassifier] = [first, *members]
        for model in models:
            model.members, model.mixture, model.decode_config = (), None, config
            model.thresholds, model.calibrator = None, None
        scores = [model.score_matrix(documents.texts) for model in models]
        first._mix_with(members, scores, documents.labels)
        seen = [model.seen for model in (first, *others)]
        known = [each for each in seen if each is not None]
        hashes = text_hashes(list(documents.texts))
        first.seen = np.unique(np.concatenate([hashes, *known])) if len(known) == len(seen) else None
        first.metrics["split"] = "dev"
        return first

    def _split(self, data: dict[str, Documents]) -> tuple[Documents, Documents]:
        """The documents of train and dev; dev is held out from train if it is not given."""
        if not isinstance(data, dict) or not all(isinstance(split, Documents) for split in data.values()):
            raise DataError(f"data is {reprlib.repr(data)}; expected documents by split, as `read_data` returns them")
        for split in data.values():
            split.check(self.taxonomy)
        train = data.get("train") or data.get("data")
        if not train:
            raise DataError("there is nothing to train on; expected a train split with at least one document")
        if dev := data.get("dev"):
            return train, dev
        return train.split(self.data_config.dev_share, self.train_config.seed)

    def hold_out_test(self, data: dict[str, Documents]) -> dict[str, Documents]:
        """Hold out test documents if the data is a single file without splits, as `hill train` does."""
        share = self.data_config.test_share
        if list(data) != ["data"] or round(share * len(data["data"])) == 0:
            return data
        rest, test = data["data"].split(share, self.train_config.seed)
        return {"data": rest, "test": test}

    def _seen_texts(self, texts: list[str]) -> Hashes:
        """Sorted hashes of these texts, and of those of the model that this training starts from."""
        start = self.train_config.warm_start
        earlier = _read_seen_file(Path(start)) if start else None
        hashes = text_hashes(texts)
        return np.unique(hashes if earlier is None else np.concatenate([hashes, earlier]))

    def _start(self, train: Documents) -> Session:
        """Build the model and start its training."""
        torch.manual_seed(self.train_config.seed)
        if self.train_config.warm_start:
            old = load_saved(Path(self.train_config.warm_start))
            model, tokenizer, self.warm_start_report = build_warm(old, train, self.taxonomy, self.model_config)
        else:
            kind = MODELS[self.name]
            text, tokenizer = new_text_encoder(self.model_config, train.texts)
            assets = kind.prepare(train, self.taxonomy, self.model_config, tokenizer)
            model = kind(text, self.taxonomy, self.model_config, assets)
            model.start()
        add_adapters(model.text, self.train_config.lora)
        freeze_layers(model.text, self.train_config.freeze)
        self._session = Session(model, self.train_config, find_device(self.train_config.device))
        self._stored = SavedModel(self.name, model, self.taxonomy, tokenizer, self.settings())
        self._inference = self._session.inference
        self.metrics, self.training_record = {}, {}
        return self._session

    def _tokenise(self, *splits: Documents) -> Generator[StageProgress, None, list[Split]]:
        """Tokenise splits and yield the number of documents done."""
        result, done, total = [], 0, sum(map(len, splits))
        for documents in splits:
            parts = []
            for part in cached_tokens(documents.texts, self.stored.tokenizer, self.max_length):
                parts.append(part)
                done += len(part)
                yield StageProgress("tokenising", done, total)
            result.append(Split(join_tokens(parts), documents.labels, documents.ids))
        return result

    # Prediction

    @property
    def stored(self) -> SavedModel:
        """The PyTorch model with its taxonomy, tokenizer and settings."""
        if self._stored is None:
            raise ConfigError("the classifier has not learned anything yet; call fit or load first")
        return self._stored

    @property
    def max_length(self) -> int:
        """Maximum number of tokens per text or window."""
        return min(self.data_config.max_length, self.stored.model.text.longest)

    def scores(self, texts: Sequence[str]) -> Iterator[ScoredBatch]:
        """Yield the scores of the model, between 0 and 1, in batches of texts, the longest texts first."""
        texts, tokenizer, windows = check_texts(texts), self.stored.tokenizer, self.data_config.windows
        if windows < 2:
            return self.mix(self._score(tokenize(texts, tokenizer, self.max_length)), texts)
        return self.mix(score_windows(texts, tokenizer, self.max_length, windows, self._score), texts)

    def _score(self, documents: Tokens | Tensor) -> Iterator[ScoredBatch]:
        """Score documents, given as tokens or as vectors of a frozen encoder, without the members."""
        assert self._inference is not None
        return self._inference.scores(documents, self.decode_config.keep)

    def explain(
        self, text: str, labels: Iterable[str] | None = None, method: str = "integrated", steps: int = 0
    ) -> Explanation:
        """How much each word of a text adds to the scores of labels; see `hill.explain.explain`."""
        return explain(self, text, labels, method, steps)

    # Saving, loading and the model hub

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that prediction needs to a folder, completely or not at all.

        An earlier model in the folder is replaced; files that hill did not write are never removed. After a training in
        this folder, its checkpoints are removed.
        """
        path = as_path(folder, "folder")
        replace(self.stored, settings=self.settings()).save(path, self._documents(), members=self._saved_members())
        remove_training(path)

    def _documents(self) -> dict[str, Any]:
        documents = {"thresholds.json": self.thresholds_document(), "metrics.json": self.metrics}
        if self.training_record:
            documents[TRAINING_FILE] = self.training_record
        if self.seen is not None:
            documents[SEEN_FILE] = seen_document(self.seen)
        if self.mixture is not None:
            documents[ENSEMBLE_FILE] = {
                "members": list(self._saved_members()),
                "mixture": self.mixture.to_dict(),
                "own_decoding": self.own_decoding,
            }
        return documents

    def _saved_members(self) -> dict[str, SavedModel]:
        """The models of the members, by the name of their folder."""
        return {f"member-{number}": member.stored for number, member in enumerate(self.members, start=1)}

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto", precision: str = "") -> Self:
        """Load a classifier that `save` wrote; any problem with the folder is a `HillError`.

        The precision is that of `train.precision` at training, unless it is given here.
        """
        path = as_path(folder, "folder")
        try:
            check_model(path)
            stored = load_saved(path)
            settings = by_group(stored.settings)
            settings.setdefault("train", {})["device"] = device
            if precision:
                check_one_of(precision, PRECISIONS, "precision")
                settings["train"]["precision"] = precision
            classifier = cls(stored.taxonomy, stored.name, settings, preset=None)
            classifier.set_stored(stored)
            classifier.set_thresholds(read_object(path / "thresholds.json"))
            classifier.metrics, record = read_object(path / "metrics.json"), path / TRAINING_FILE
            classifier.training_record = read_object(record) if record.exists() else {}
            if (path / ENSEMBLE_FILE).exists():
                classifier._load_members(path, device)
            classifier.seen = _read_seen_file(path)
            return classifier
        except HillError:
            raise
        except Exception as error:  # any type: the files may come from anywhere
            raise unusable(folder, error) from error

    def _load_members(self, folder: Path, device: str) -> None:
        """Load the members of an ensemble from the folders beside the model."""
        document, members = read_object(folder / ENSEMBLE_FILE), []
        for name in document["members"]:
            if not MEMBER_FOLDER.fullmatch(str(name)):
                raise CheckpointError(f"'{folder / ENSEMBLE_FILE}' names the folder {name!r:.80}; expected member-1, …")
            stored = load_saved(folder / name)
            if stored.taxonomy != self.taxonomy:
                raise CheckpointError(f"'{folder / name}' has another taxonomy than '{folder}'; copy the model again")
            settings = by_group(stored.settings)
            settings["train"] = {**settings.get("train", {}), "device": "cpu" if stored.model.has_solver else device}
            settings["decode"] = {"keep": self.decode_config.keep}
            member = HillClassifier(stored.taxonomy, stored.name, settings, preset=None)
            member.set_stored(stored)
            members.append(member)
        self.members = tuple(members)
        self.mixture = read_mixture(document["mixture"], self.taxonomy, 1 + len(members))
        self.own_decoding = document["own_decoding"]

    def set_stored(self, stored: SavedModel) -> None:
        """Use a model for prediction, which needs two settings of training: device and precision."""
        self._stored, self.taxonomy, self.name = stored, stored.taxonomy, stored.name
        train = self._given().get("train", {})
        precision = "fp32" if train.get("plain") else train.get("precision", "auto")
        self._inference = Inference(stored.model, find_device(train.get("device", "auto")), precision, True)

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        config: None = None,
        model_card_kwargs: None = None,
        **options: Any,
    ) -> str | None:
        """Save to a folder with a model card; paths of this machine are shortened to their last name."""
        folder, stored = as_path(save_directory, "save_directory"), self.stored
        documents = self._documents() | {
            name: {key: value for key, value in document.items() if key != "_name_or_path"}
            for name, document in stored.model.text.documents().items()
        }
        card = str(self.generate_model_card())
        replace(stored, settings=public_settings(self.settings())).save(folder, documents, card, self._saved_members())
        remove_training(folder)
        return self.push_to_hub(repo_id or folder.name, **options) if push_to_hub else None

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *, device: str = "auto", **options: Any
    ) -> Self:
        """Load a classifier from a folder or a hub repository; options as for `snapshot_download`."""
        as_path(pretrained_model_name_or_path, "pretrained_model_name_or_path")
        path = os.fspath(pretrained_model_name_or_path)
        if not os.path.isdir(path):
            try:
                path = snapshot_download(path, allow_patterns=HUB_FILES, **options)
            except (OSError, ValueError) as error:
                reason = str(error).strip().split("\n")[0][:200]
                raise CheckpointError(
                    f"'{path}' is neither a folder nor an accessible hub repository: {reason}"
                ) from None
        return cls.load(path, device)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The model card."""
        stored = self.stored
        counts = stored.model.assets.get(COUNTS_FILE)
        support = None if counts is None else np.array(counts)
        facts = ModelFacts(stored.name, self.settings(), stored.taxonomy, self.metrics, self.training_record, support)
        return ModelCard(make_card(facts))

    # scikit-learn

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters as they were given; if deep, also every setting, such as `train__epochs`."""
        if not deep:
            return dict(self._params)
        settings = HillClassifier(**self._params).settings()
        nested = {f"{group}__{key}": value for group in settings for key, value in settings[group].items()}
        return self._params | nested

    def set_params(self, **params: Any) -> Self:
        """Set parameters, or settings such as `epochs=3` or `train__epochs=3`.

        A fitted classifier uses them from the next `fit`.
        """
        changed = HillClassifier(**(self._params | {name: params[name] for name in PARAMETERS if name in params}))
        for name in (name for name in params if name not in PARAMETERS):
            setting = changed._setting(name)
            for other in changed._params.keys() - PARAMETERS - {name}:  # another name of the same setting
                if changed._setting(other) == setting and other not in params:
                    del changed._params[other]
            changed._params[name] = params[name]
        if changed._params.keys() - PARAMETERS:
            changed.settings()  # an unknown setting fails before a search begins
        self._params = changed._params
        if self._stored is None:
            self._reset()
        return self

    @property
    def classes_(self) -> npt.NDArray[np.str_]:
        """The label ids (L) in the order of all matrices; only after `fit`."""
        if self._stored is None:
            raise AttributeError("classes_ is known after fit")
        return np.array(self.taxonomy.ids)

    def indicator(self, labels: Iterable[str | Iterable[str]]) -> IntArray:
        """Label sets (ids, names or paths) as a 0/1 matrix (documents, L), ancestors included."""
        taxonomy = self.taxonomy
        rows = [taxonomy.encode(label_set) for label_set in check_label_sets(labels)]
        columns = np.concatenate([*rows, np.empty(0, dtype=np.int64)])
        values = np.ones(len(columns), dtype=bool), columns, np.cumsum([0, *map(len, rows)])
        return taxonomy.closures(csr_array(values, shape=(len(rows), len(taxonomy)))).toarray().astype(np.int64)

    def score(self, texts: Sequence[str], labels: Any) -> float:
        """Micro F1 of the predictions; labels in any form that `fit` accepts."""
        return float(self.evaluate(make_documents(texts, labels, self.taxonomy), include_seen=True)["micro_f1"])

    def __sklearn_is_fitted__(self) -> bool:
        return self._stored is not None

    def __sklearn_tags__(self) -> Any:
        tags = need("sklearn.utils", "sklearn", "a scikit-learn estimator")
        return tags.Tags(
            estimator_type="classifier",
            target_tags=tags.TargetTags(required=True, one_d_labels=True, two_d_labels=True),
            classifier_tags=tags.ClassifierTags(multi_label=True),
            input_tags=tags.InputTags(one_d_array=True, two_d_array=False, string=True),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._params.items())})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None, "_inference": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._stored is not None:
            self.set_stored(self._stored)


class BackgroundFit:
    """Fits a member in a thread while a GPU trains the model."""

    def __init__(self, fitting: Generator[Any, None, HillClassifier | None]) -> None:
        self.notices: list[Notice] = []
        """What the user is told, once the member is waited for."""
        self._result: HillClassifier | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(fitting,), daemon=True)
        self._thread.start()

    def _run(self, fitting: Generator[Any, None, HillClassifier | None]) -> None:
        try:
            while True:
                if isinstance(event := next(fitting), Notice):
                    self.notices.append(event)
        except StopIteration as stop:
            self._result = stop.value
        except BaseException as error:  # raised again in the main thread
            self._error = error

    def wait(self) -> HillClassifier | None:
        """The member, or None if it was left out."""
        self._thread.join()
        if self._error:
            raise self._error
        return self._result


def mean_f1(metrics: dict[str, Any]) -> float:
    """The mean of micro and macro F1."""
    return float(metrics["micro_f1"] + metrics["macro_f1"]) / 2


def is_cold_start(folder: str) -> bool:
    """Whether a folder has a model that was made by `hill start`, without labelled documents."""
    record = Path(folder) / TRAINING_FILE
    return bool(folder) and record.exists() and "cold_start" in read_object(record)


def _read_seen_file(folder: Path) -> Hashes | None:
    """The hashes of the texts that a saved model has seen; None for models of earlier versions."""
    return read_seen(read_object(folder / SEEN_FILE)) if (folder / SEEN_FILE).exists() else None


# Labels as lists or matrices


def make_documents(texts: Iterable[str], labels: Any, taxonomy: Taxonomy) -> Documents:
    """Texts with their labels, given as lists or as a matrix; ancestors are added."""
    if getattr(labels, "ndim", 1) == 1:
        return label_documents(texts, labels, taxonomy)
    checked = check_texts(texts)
    matrix = _to_sparse(labels, len(checked), taxonomy)
    if len(empty := np.flatnonzero(np.diff(matrix.indptr) == 0)):
        raise DataError(f"texts[{empty[0]}] has no labels; expected at least one 1 in its row of the matrix")
    closed = taxonomy.closures(matrix)
    return Documents([str(index) for index in range(len(checked))], checked, closed, closed.nnz - matrix.nnz)


def _to_sparse(labels: Any, n_texts: int, taxonomy: Taxonomy) -> csr_array[Any]:
    """A label matrix as a boolean sparse matrix (texts, L); raises if a value is neither 0 nor 1."""
    if labels.shape != (n_texts, len(taxonomy)):
        raise DataError(
            f"labels have the shape {labels.shape}; expected ({n_texts}, {len(taxonomy)}): one row per text and one "
            "column per label in the order of the taxonomy, as `indicator` makes them"
        )
    for index, (name, label) in enumerate(zip(getattr(labels, "columns", ()), taxonomy, strict=False)):
        if name not in (index, label.id):
            raise DataError(
                f"column {index} of labels is {name!r}; expected '{label.id}': order the columns as the taxonomy does, "
                "with labels[taxonomy.ids]"
            )
    values: Any = labels if issparse(labels) else np.asarray(labels)
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"labels are a matrix of dtype {values.dtype}; expected 0 and 1 as bool, int or float, or a list with the "
            "labels of each text"
        )
    matrix: csr_array[Any] = csr_array(values, copy=True)
    matrix.sum_duplicates()
    if len(wrong := np.flatnonzero((matrix.data != 0) & (matrix.data != 1))):
        row = int(np.searchsorted(matrix.indptr, wrong[0], side="right")) - 1
        column = int(matrix.indices[wrong[0]])
        raise DataError(
            f"labels[{row}, {column}], for label '{taxonomy[column].id}', is {matrix.data[wrong[0]]}; expected 0 or 1"
        )
    matrix.eliminate_zeros()
    return matrix.astype(bool)
