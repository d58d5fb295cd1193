"""Measure text vectors on a GPU: `encode` of sentence-transformers and the packed encoder, both in bf16.

Both read the same texts with a BERT-base of random weights: words of a made-up vocabulary, lengths normal(200, 80)
clipped to 20-512. Run it as `python benchmarks/bench_encode.py [--documents 8000] [--out FILE]`.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
import transformers
from bench_step import BASE, LIMIT, build, operations, stars
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling
from sentence_transformers.models import Transformer as SentenceEncoder
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from hill.data.tokens import tokenize
from hill.models.inference import Inference

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = 30_000


def make_tokenizer() -> Tokenizer:
    """One token per word, between the special tokens of BERT."""
    tokenizer = Tokenizer(
        WordLevel({w: i for i, w in enumerate([*SPECIAL, *map("w{}".format, range(WORDS))])}, "[UNK]")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", SPECIAL.index("[CLS]")), ("[SEP]", SPECIAL.index("[SEP]"))]
    )
    return tokenizer


def best_time(action: Callable[[], Any], rounds: int = 2) -> float:
    """Seconds of the best round; a round before that is a warm-up."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def main() -> None:
    """Print documents per second of each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=8_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    draw = np.random.default_rng(0)
    counts = draw.normal(200, 80, arguments.documents).clip(20, 512).astype(int) - 2
    texts = [" ".join(f"w{i}" for i in draw.integers(0, WORDS, count)) for count in counts]
    tokenizer, model = make_tokenizer(), build("flat", "bert-base", stars(), {})
    encoder, make_fast = model.text.encoder, cast(Any, transformers.PreTrainedTokenizerFast)
    speeds = {}
    with TemporaryDirectory() as folder:
        encoder.save_pretrained(folder)
        names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
        make_fast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
        module = SentenceEncoder(folder, max_seq_length=512)
        sentences = SentenceTransformer(modules=[module, Pooling(BASE["hidden_size"])], device="cuda").bfloat16()
        for size in (32, 128):
            seconds = best_time(partial(sentences.encode, texts, batch_size=size, convert_to_tensor=True))
            speeds[f"sentence-transformers, batches of {size}"] = seconds
        found = sentences.encode(texts[:64], convert_to_tensor=True)
    inference = Inference(model, torch.device("cuda"), "bf16")
    tokens = tokenize(texts, tokenizer, 512)
    speeds["hill, with tokenization"] = best_time(lambda: list(inference.vectors(tokenize(texts, tokenizer, 512))))
    speeds["hill, tokens given"] = best_time(lambda: list(inference.vectors(tokens)))
    speeds["tokenization alone"] = best_time(lambda: tokenize(texts, tokenizer, 512))
    own = torch.cat([vectors for _, vectors in inference.vectors(tokenize(texts[:64], tokenizer, 512))])
    order = np.concatenate([documents for documents, _ in inference.vectors(tokenize(texts[:64], tokenizer, 512))])
    cosine = torch.nn.functional.cosine_similarity(own, found[torch.from_numpy(order).cuda()].float()).min().item()
    limit = operations(encoder, tokens.lengths) / LIMIT
    rows = [
        {"variant": name, "docs_s": round(len(texts) / spent), "limit": round(limit / spent, 3)}
        for name, spent in speeds.items()
    ]
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}"
    result = {"benchmark": "encode", "machine": machine, "lowest_cosine": round(cosine, 5), "rows": rows}
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
