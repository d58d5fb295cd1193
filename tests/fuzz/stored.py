"""Tiny real model folders and checkpoints, and how they are read."""

import json
import tempfile
from functools import cache
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from hill.classifier import HillClassifier
from hill.io import sha256
from hill.train import Session
from hill.train.checkpoint import Checkpoints
from tests.conftest import WORDS, animals_taxonomy, toy_documents
from tests.fuzz.seeds import Files, folder_files

FACTS = {"model": "hill", "labels": ["a"]}


def _encoder(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", *(word for words in WORDS.values() for word in words)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)


@cache
def classifier() -> HillClassifier:
    """A classifier after a short training."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        _encoder(Path(folder))
        settings = {
            "model": {"encoder": folder, "height": 2},
            "train": {"epochs": 1, "batch_size": 8, "head_start": "off", "device": "cpu"},
            "data": {"max_length": 16},
            "decode": {"calibrate": "isotonic"},
        }
        return HillClassifier(animals_taxonomy(), settings=settings, preset=None).fit(*toy_documents(24, 1))


@cache
def session() -> Session:
    """A training of that classifier that has taken one step."""
    found = Session(classifier().stored.model, classifier().train_config, torch.device("cpu"))
    sum(weight.float().sum() for weight in found.model.parameters()).backward()
    found.optimiser.step()
    return found


@cache
def model_seeds() -> list[Files]:
    """A saved model, with and without checksums."""
    with tempfile.TemporaryDirectory() as folder:
        classifier().save(Path(folder) / "model")
        files = folder_files(Path(folder) / "model")
    return [files, {name: content for name, content in files.items() if name != "files.json"}]


def model(folder: Path) -> None:
    """Load a model and predict."""
    _write_checksums(folder)
    HillClassifier.load(folder, device="cpu").predictions(["fur milk cave"])


@cache
def state_seeds() -> list[Files]:
    """The checkpoint of a training, with and without checksums."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder) / "checkpoints", FACTS)
        checkpoints.keep_best(session())
        checkpoints.save(session())
        files = folder_files(Path(folder) / "checkpoints")
    return [files, {name: content for name, content in files.items() if not name.endswith("files.json")}]


def checkpoint(folder: Path) -> None:
    """Resume a training and run a step."""
    for state in folder.glob("state-*"):
        _write_checksums(state)
    resumed = session()
    checkpoints = Checkpoints(folder, FACTS)
    if checkpoints.resume(resumed):
        checkpoints.load_best(resumed)
        resumed.optimiser.zero_grad()
        sum(weight.float().sum() for weight in resumed.model.parameters()).backward()
        resumed.optimiser.step()


def _write_checksums(folder: Path) -> None:
    """Write matching checksums if there are none, so that damaged files are read."""
    if not (folder / "files.json").exists():
        files = [file for file in folder.rglob("*") if file.is_file()]
        sums = {str(file.relative_to(folder)): sha256(file) for file in files}
        (folder / "files.json").write_text(json.dumps(sums))
