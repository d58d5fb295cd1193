"""Count the files and functions of the package that a small training and a small prediction run through.

Run it as `python benchmarks/walk.py [--out FILE]`. It runs `hill train` and `hill predict` on toy data under a tracer
and counts the files of the package and the functions in them that were called. Imports do not count.
"""

import argparse
import json
import pkgutil
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import hill
from hill.cli import app

PACKAGE = str(Path(hill.__file__).parent)
LIMITS = {"train": 40, "predict": 22}
"""The maximum number of files that a reader should have to open."""
WORDS = {"cat": "fur milk paw", "bird": "wing feather egg", "oak": "leaf root bark"}


def write_encoder(folder: Path) -> None:
    """A BERT of one layer with random weights."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *" ".join(WORDS.values()).split()]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    bert: Any = transformers
    fast = bert.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = bert.BertConfig(vocab_size=len(words), max_position_embeddings=16, **sizes)
    bert.BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def write_data(folder: Path) -> None:
    """Thirty documents of three labels."""
    lines = [{"text": WORDS[label], "labels": [label]} for _ in range(10) for label in WORDS]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "taxonomy.tsv").write_text("id\tparents\tname\na\t\tAnimals\ncat\ta\tCats\nbird\ta\tBirds\noak\t\tOaks\n")


def walk(words: list[str]) -> set[tuple[str, str]]:
    """The functions of the package that a command calls, as (file, qualified name)."""
    called: set[tuple[str, str]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name != "<module>":
            called.add((code.co_filename.removeprefix(PACKAGE), code.co_qualname))
        return None

    for module in pkgutil.walk_packages(hill.__path__, "hill."):
        if module.name not in ("hill.__main__", "hill.encoders.kernels"):  # the kernels need a GPU
            import_module(module.name)
    sys.setprofile(trace)
    try:
        app(words, standalone_mode=False)
    finally:
        sys.setprofile(None)
    return called


def main() -> None:
    """Print the counts, and the files of each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--files", action="store_true", help="list the files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_encoder(folder / "encoder")
        write_data(folder)
        data = [str(folder / "train.jsonl"), "--taxonomy", str(folder / "taxonomy.tsv"), "--out", str(folder / "model")]
        sets = [f"--set={name}" for name in ("train.epochs=1", "train.batch_size=8", "model.height=2")]
        commands = {
            "train": ["train", *data, "--encoder", str(folder / "encoder"), *sets],
            "predict": ["predict", str(folder / "model"), "fur milk"],
        }
        rows = {name: walk(words) for name, words in commands.items()}
    result = {}
    for name, called in rows.items():
        files = sorted({file for file, _ in called if not file.endswith("__init__.py")})
        result[name] = {"files": len(files), "functions": len(called), "most_files": LIMITS[name]}
        print(f"hill {name}: {len(files)} files (at most {LIMITS[name]} wanted), {len(called)} functions")
        if arguments.files:
            print("  " + "\n  ".join(files))
    if arguments.out:
        arguments.out.write_text(json.dumps({"benchmark": "walk", **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
