"""Measure how much each loss of a trained HILL contributes to the gradient at the text encoder.

Run it as `python experiments/gradients.py MODEL --data FILE.jsonl [--documents 128] [--contrast 0.1]`:
the gradient norms of the document vectors for the label loss alone and for λ times the contrastive loss alone.
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hill.classifier import HillClassifier
from hill.data.batches import collate
from hill.data.documents import label_documents
from hill.data.tokens import tokenize
from hill.models import HILL


def norms(classifier: HillClassifier, records: list[dict[str, Any]]) -> dict[str, float]:
    """The gradient norm per loss, without the factor λ."""
    model, tokenizer = classifier.stored.model, classifier.stored.tokenizer
    assert isinstance(model, HILL)
    documents = label_documents(
        [record["text"] for record in records], [record["labels"] for record in records], classifier.taxonomy
    )
    tokens = tokenize(documents.texts, tokenizer, classifier.max_length)
    batch = collate(tokens, documents.labels, torch.arange(len(records)).numpy(), model.text.pad)
    assert batch.labels is not None
    with torch.no_grad():
        vectors = model.text.read(batch).float()
    found = {}
    model.train()
    torch.manual_seed(0)
    for name in ("labels", "contrast"):
        leaf = vectors.clone().requires_grad_()
        tree = model.structure(leaf)
        if name == "labels":
            loss = model.label_loss(model.head(torch.cat([leaf, tree], dim=1)), batch.labels)
        else:
            loss = model.contrast(leaf, tree, batch.labels)
        (gradient,) = torch.autograd.grad(loss, leaf)
        found[name] = float(gradient.norm())
        found[f"{name}_loss"] = float(loss)
    return found


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=128)
    parser.add_argument("--contrast", type=float, default=0.1)
    arguments = parser.parse_args()
    classifier = HillClassifier.load(arguments.model)
    with arguments.data.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in islice(lines, arguments.documents)]
    found = norms(classifier, records)
    share = arguments.contrast * found["contrast"] / (arguments.contrast * found["contrast"] + found["labels"])
    print(json.dumps({**found, "lambda": arguments.contrast, "share_of_contrast": round(share, 4)}))


if __name__ == "__main__":
    main()
