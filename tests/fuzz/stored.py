"""Model folders and checkpoints: a tiny real one of each, and how they are read."""

import json
import tempfile
from functools import cache
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from hill.classifier import HillClassifier
from hill.disk import sum_of
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
    """A classifier that has learned a little."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        _encoder(Path(folder))
        settings = {
            "model": {"encoder": folder, "height": 2},
            "train": {"epochs": 1, "batch_size": 8, "head_start": "off", "device": "cpu"},
            "data": {"max_length": 16},
            "decode": {"calibrate": "isotonic"},
        }
        return HillClassifier(animals_taxonomy(), settings=settings).fit(*toy_documents(24, 1))


@cache
def model_seeds() -> list[Files]:
    """A saved model, with the sums of its files and without."""
    with tempfile.TemporaryDirectory() as folder:
        classifier().save(Path(folder) / "model")
        files = folder_files(Path(folder) / "model")
    return [files, {name: content for name, content in files.items() if name != "files.json"}]


def model(folder: Path) -> None:
    """What is loaded predicts."""
    _seal(folder)
    HillClassifier.load(folder, device="cpu").predictions(["fur milk cave"])


@cache
def state_seeds() -> list[Files]:
    """The state of a training, with the sums of its files and without."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder) / "checkpoints", FACTS)
        checkpoints.keep_best(classifier()._running)
        checkpoints.save(classifier()._running)
        files = folder_files(Path(folder) / "checkpoints")
    return [files, {name: content for name, content in files.items() if not name.endswith("files.json")}]


def checkpoint(folder: Path) -> None:
    """What is resumed can be trained on."""
    for state in folder.glob("state-*"):
        _seal(state)
    session = classifier()._running
    checkpoints = Checkpoints(folder, FACTS)
    if checkpoints.resume(session):
        checkpoints.load_best(session)
        session.optimiser.zero_grad()
        sum(weight.float().sum() for weight in session.model.parameters()).backward()
        session.optimiser.step()


def _seal(folder: Path) -> None:
    """Write the sums of the files as they are, where none are given, so that what is wrong is read."""
    if not (folder / "files.json").exists():
        files = [file for file in folder.rglob("*") if file.is_file()]
        sums = {str(file.relative_to(folder)): sum_of(file) for file in files}
        (folder / "files.json").write_text(json.dumps(sums))
