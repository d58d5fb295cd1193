"""Cold start against plain similarity, and what was tried on top of it; no labelled document is used by any row.

Accuracy is over documents with a leaf of the taxonomy among their labels: is the leaf with the highest score one of
them? F1 is that of the best path. Run it as
`python experiments/cold_start.py --data DIR --sets wos attack --encoder minilm --split dev --out FILE`, where DIR has a
folder per data set. Rows of test are `cosine` (names), `knn` (names and descriptions), `tfidf` and `start`.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frozen import LENGTHS, Vectors, append, read_set
from scipy.special import softmax

from hill import cold_start as module
from hill.cold_start import SHARPNESS, WORDS_WEIGHT, cold_start, encode
from hill.data import Documents
from hill.decode.calibration import logits
from hill.taxonomy import Taxonomy

MAX_SLOW = 2_000
"""Unlabelled texts for encoders that are slower than minilm."""


def leaf_accuracy(scores: Any, documents: Documents, taxonomy: Taxonomy) -> dict[str, float]:
    """Whether the leaf with the highest score, or one of the five highest, is right."""
    gold = documents.labels[:, taxonomy.leaves].toarray().astype(bool)
    order = np.argsort(-scores[:, taxonomy.leaves], axis=1, kind="stable")
    hits = np.take_along_axis(gold, order[:, :5], axis=1)[gold.any(axis=1)]
    return {"leaf_accuracy": float(hits[:, 0].mean()), "leaf_in_5": float(hits.any(axis=1).mean())}


def self_training(scores: Any, vectors: Any, new: Any, new_scores: Any, rounds: int, share: float) -> Any:
    """Logistic regression on pseudo-labels, the most confident share per label, mixed with the first scores."""
    from sklearn.linear_model import LogisticRegression

    log_scores, mixed_new = np.log(softmax(logits(scores), axis=1)), None
    first, first_new = log_scores, np.log(softmax(logits(new_scores), axis=1))
    for _ in range(rounds):
        best, sure = log_scores.argmax(axis=1), log_scores.max(axis=1)
        kept = []
        for label in np.unique(best):
            own = np.flatnonzero(best == label)
            kept.append(own[np.argsort(-sure[own])][: max(3, int(share * len(own)))])
        rows = np.concatenate(kept)
        model = LogisticRegression(C=20, max_iter=200).fit(vectors[rows], best[rows])
        known, learned_new = (np.full((len(each), scores.shape[1]), -12.0) for each in (vectors, new))
        known[:, model.classes_] = np.maximum(model.predict_log_proba(vectors), -12)
        learned_new[:, model.classes_] = np.maximum(model.predict_log_proba(new), -12)
        log_scores, mixed_new = (known + first) / 2, (learned_new + first_new) / 2
    return mixed_new


def run(data: Path, name: str, encoder: str, split: str, cache: Path, out: Path) -> None:
    """All rows of a data set."""
    taxonomy, splits = read_set(data, name)
    vectors = Vectors(cache, encoder, LENGTHS[name])
    documents, train = splits[split], splits["train"]
    if encoder != "minilm":  # slow encoders read a sample
        train = train.take(np.random.default_rng(0).permutation(len(train))[:MAX_SLOW])
    unlabelled, new, known = train.texts, vectors(documents.texts), vectors(train.texts)
    vectors.use()
    common = {"data": name, "encoder": Path(encoder).name, "split": split, "documents": len(documents), "seed": 0}
    settings = {"max_length": LENGTHS[name], "sharpness": SHARPNESS, "words_weight": WORDS_WEIGHT}
    results = {}
    weights = (0.0, 0.3, 0.6) if split == "dev" else (module.HUB_WEIGHT,)
    for texts, module.HUB_WEIGHT in [([], 0.0), *((unlabelled, weight) for weight in weights)]:
        classifier = cold_start(taxonomy, texts, encoder)
        own = np.concatenate([scores for _, scores in classifier._score(torch.from_numpy(new).float())])
        words = classifier.members[0].score_matrix(documents.texts)
        assert classifier.mixture is not None
        scores: Any = classifier.mixture([own, words])
        measured = classifier.measure([(np.arange(len(documents)), scores)], documents.labels)
        row = common | {"row": "start", "texts": len(texts), "settings": settings | {"hub_weight": module.HUB_WEIGHT}}
        metrics = {key: measured[key] for key in ("micro_f1", "macro_f1", "ece_levels")}
        results[module.HUB_WEIGHT] = classifier, scores
        append(out, row | leaf_accuracy(scores, documents, taxonomy) | metrics)
        append(out, row | {"row": "start, encoder only"} | leaf_accuracy(own, documents, taxonomy))
    append(out, common | {"row": "tfidf", "texts": len(texts)} | leaf_accuracy(words, documents, taxonomy))
    described = [f"{label.name} {label.description}".strip() for label in taxonomy]
    for name_of_row, read in {"cosine": [label.name for label in taxonomy], "knn": described}.items():
        similarity = new @ encode(classifier, read, 256).T
        append(out, common | {"row": name_of_row} | leaf_accuracy(similarity, documents, taxonomy))
    if split == "dev" and encoder == "minilm":
        classifier, scores = results[0.0]
        own = np.concatenate([each for _, each in classifier._score(torch.from_numpy(known).float())])
        assert classifier.mixture is not None
        before: Any = classifier.mixture([own, classifier.members[0].score_matrix(unlabelled)])[:, taxonomy.leaves]
        after = scores[:, taxonomy.leaves]
        tried = {
            f"start + self-training, {rounds} rounds": self_training(before, known, new, after, rounds, 0.6)
            for rounds in (1, 3)
        }
        for name_of_row, leaves in tried.items():
            whole = np.full(scores.shape, -np.inf)
            whole[:, taxonomy.leaves] = leaves
            append(
                out, common | {"row": name_of_row, "texts": len(unlabelled)} | leaf_accuracy(whole, documents, taxonomy)
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["wos", "arxiv", "attack", "icd"])
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--cache", type=Path, default=Path("build/vectors"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for each in given.sets:
        run(given.data, each, given.encoder, given.split, given.cache, given.out)
