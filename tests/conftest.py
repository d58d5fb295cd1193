"""Small things that many tests share."""

import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from hill.taxonomy import Label, Taxonomy

os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # one thread a worker: more would wait for each other
    os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HILL_CACHE"] = tempfile.mkdtemp()
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell leaves it to commands in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("hill", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("hill")

ROOT = Path(__file__).parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What torch draws in a test or a fixture does not depend on the tests before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Nor on whether it is the first to ask for a fixture."""
    pytest_runtest_setup()


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first worker makes for all."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            make(draft := place.with_suffix(".draft"))
            draft.rename(place)
    return place


def random_taxonomy(seed: int, n: int = 30, roots: int = 3, most_parents: int = 1) -> Taxonomy:
    """A forest, or with several parents a DAG, whose parents come anywhere in the order."""
    draw = np.random.default_rng(seed)
    place = draw.permutation(n)
    labels = []
    for i in range(n):
        count = 0 if i < roots else min(i, int(draw.integers(1, most_parents + 1)))
        parents = draw.choice(i, size=count, replace=False).tolist() if count else []
        labels.append((place[i], Label(f"id{place[i]}", f"name {place[i]}", tuple(f"id{place[p]}" for p in parents))))
    return Taxonomy([label for _, label in sorted(labels, key=lambda pair: pair[0])])


@pytest.fixture
def animals() -> Taxonomy:
    """A small DAG: bats are mammals that fly, and two labels are called Others."""
    return animals_taxonomy()


def animals_taxonomy() -> Taxonomy:
    return Taxonomy(
        [
            Label("a", "Animals"),
            Label("m", "Mammals", ("a",)),
            Label("f", "Flyers", ("a",)),
            Label("bat", "Bats", ("m", "f"), "Mammals with wings."),
            Label("mo", "Others", ("m",)),
            Label("fo", "Others", ("f",)),
            Label("p", "Plants"),
        ]
    )


WORDS = {
    "m": ["fur", "milk", "whiskers"],
    "f": ["wing", "feather", "sky"],
    "bat": ["cave", "echo", "night"],
    "mo": ["paw", "tail", "bone"],
    "fo": ["beak", "nest", "egg"],
    "p": ["leaf", "root", "bark"],
}


def toy_documents(count: int, seed: int) -> tuple[list[str], list[list[str]]]:
    """Texts whose words tell their label."""
    draw = np.random.default_rng(seed)
    labels = [str(label) for label in draw.choice(["bat", "mo", "fo", "p"], size=count)]
    texts = []
    for label in labels:
        above = {"bat": ["m", "f"], "mo": ["m"], "fo": ["f"], "p": []}[label]
        known = [word for name in [label, *above] for word in WORDS[name]]
        texts.append(" ".join(str(word) for word in draw.choice(known, size=int(draw.integers(3, 9)))))
    return texts, [[label] for label in labels]


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real BERT of 2 layers, 16 wide, and a word-level tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(word for words in WORDS.values() for word in words)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def still_encoder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder without dropout."""
    folder = tmp_path_factory.mktemp("still") / "encoder"
    shutil.copytree(tiny_encoder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def exported(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model for the animals as an export, which starts sooner; beside it as it was before, `trained`."""
    for package in ("onnxruntime", "onnxscript", "fastapi"):
        pytest.importorskip(package)
    from hill.export.onnx import export_onnx
    from tests.serve.test_api import train_tiny

    def make(folder: Path) -> None:
        classifier = train_tiny(tiny_encoder)
        export_onnx(classifier, folder / "animals", int8=False)
        classifier.save(folder / "trained")

    return once(tmp_path_factory, "exported", make) / "animals"
