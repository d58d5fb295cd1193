"""Label errors that `hill errors` finds: 5 % of the training documents get another label, drawn at random.

The wrong label replaces one of the most specific labels of a document and is on the same level. Precision is that of
the 100 most likely errors, recall that of as many as were made. `--save FOLDER` keeps out-of-fold scores;
`python experiments/label_errors.py --cleanlab FOLDER --out FILE` then ranks the same scores by the package cleanlab,
and needs nothing else. Run it as `python experiments/label_errors.py --data DIR --sets wos arxiv --out FILE`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

SHARE = 0.05


def measure(order: Any, is_wrong: Any, found: int) -> dict[str, Any]:
    """Precision and recall of documents in this order, of which the first `found` were reported."""
    hits, made = is_wrong[order], int(is_wrong.sum())
    return {
        "precision_at_100": float(hits[:100].mean()),
        "recall_at_made": float(hits[:made].sum() / made),
        "reported": found,
        "precision": float(hits[:found].mean()) if found else 0.0,
        "recall": float(hits[:found].sum() / made),
    }


def corrupt(labels: Any, taxonomy: Any, seed: int) -> tuple[Any, Any]:
    """Labels (documents, L) with errors, and which documents have one."""
    from hill.label_errors import most_specific

    random, specific = np.random.default_rng(seed), most_specific(labels, taxonomy)
    used = specific.any(axis=0)
    rows = random.choice(len(labels), round(SHARE * len(labels)), replace=False)
    changed = labels.copy()
    for row in rows.tolist():
        old = int(random.choice(np.flatnonzero(specific[row])))
        same = np.flatnonzero(used & ~labels[row] & (taxonomy.depth == taxonomy.depth[old]))
        kept = specific[row].copy()
        kept[old], kept[random.choice(same)] = False, True
        changed[row] = False
        changed[row, taxonomy.closure(np.flatnonzero(kept).tolist())] = True
    return changed, np.isin(np.arange(len(labels)), rows)


def score(given: Any, name: str, seed: int, taxonomy: Any, train: Any) -> None:
    """Corrupt the labels of documents, and save them and their out-of-fold scores."""
    from frozen import LENGTHS, Vectors
    from scipy.sparse import csr_array

    from hill.data import Documents
    from hill.decode import fit_mixture
    from hill.label_errors import FOLDS, _linear_scores, _ridge_scores, assign_folds, most_specific

    labels, is_wrong = corrupt(train.labels.toarray().astype(bool), taxonomy, seed)
    documents = Documents(train.ids, train.texts, csr_array(labels), 0)
    folds, linear = assign_folds(documents), np.zeros(labels.shape, dtype=np.float32)
    for fold in range(FOLDS):
        linear[folds == fold] = _linear_scores(documents, taxonomy, folds, fold)
    vectors = Vectors(given.cache, "minilm", LENGTHS[name])(train.texts)
    both = {"linear": [linear], "linear + minilm": [linear, _ridge_scores(documents, vectors, folds)]}
    for row, members in both.items():
        np.savez_compressed(
            given.save / f"{name}-{seed}-{row.replace(' ', '')}.npz",
            scores=np.asarray(fit_mixture(taxonomy, members, documents.labels)(members)).astype(np.float16),
            specific=most_specific(labels, taxonomy),
            is_wrong=is_wrong,
            common=json.dumps({"data": name, "documents": len(labels), "seed": seed, "share": SHARE, "scores": row}),
        )


def run(given: Any) -> None:
    """Corrupt, score and rank the training documents of each data set; saved scores are used again."""
    from frozen import append, read_set
    from scipy.sparse import csr_array

    from hill.label_errors import rank_errors

    given.save.mkdir(parents=True, exist_ok=True)
    for name in given.sets:
        taxonomy, splits = read_set(given.data, name)
        for seed in range(given.seeds):
            if not list(given.save.glob(f"{name}-{seed}-*.npz")):
                score(given, name, seed, taxonomy, splits["train"])
            for file in sorted(given.save.glob(f"{name}-{seed}-*.npz")):
                saved = np.load(file)
                labels = taxonomy.closures(csr_array(saved["specific"]))
                errors = rank_errors(saved["scores"].astype(np.float64), labels, taxonomy)
                order = np.array([error.index for error in errors])
                rest = np.setdiff1d(np.arange(labels.shape[0]), order)
                result = measure(np.append(order, rest), saved["is_wrong"], len(order))
                append(given.out, json.loads(str(saved["common"])) | {"row": "hill"} | result)


def run_cleanlab(given: Any) -> None:
    """Rank saved scores by cleanlab: as classes if every document has one most specific label, else as label sets."""
    from cleanlab.filter import find_label_issues
    from cleanlab.multilabel_classification.filter import find_label_issues as find_multilabel_issues
    from cleanlab.multilabel_classification.rank import get_label_quality_scores as multilabel_quality
    from cleanlab.rank import get_label_quality_scores

    for file in sorted(given.cleanlab.glob("*.npz")):
        saved = np.load(file)
        used = np.flatnonzero(saved["specific"].any(axis=0))
        specific, scores = saved["specific"][:, used], saved["scores"][:, used].astype(np.float64)
        if (specific.sum(axis=1) == 1).all():
            shares = scores / np.maximum(scores.sum(axis=1, keepdims=True), 1e-12)
            labels = specific.argmax(axis=1)
            issues = find_label_issues(labels, shares, n_jobs=1)
            quality = get_label_quality_scores(labels, shares)
        else:
            lists = [np.flatnonzero(row).tolist() for row in specific]
            issues = find_multilabel_issues(lists, scores, n_jobs=1)
            quality = multilabel_quality(lists, scores)
        order = np.lexsort((quality, ~issues))  # reported documents first, then by quality
        result = measure(order, saved["is_wrong"], int(issues.sum()))
        best = measure(np.argsort(quality), saved["is_wrong"], 0)
        line = json.loads(str(saved["common"])) | {"row": "cleanlab"} | result
        line |= {f"quality_{key}": best[key] for key in ("precision_at_100", "recall_at_made")}
        with given.out.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["wos", "arxiv"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path("build/vectors"))
    parser.add_argument("--save", type=Path, default=Path("build/errors"))
    parser.add_argument("--cleanlab", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.cleanlab:
        run_cleanlab(arguments)
    else:
        run(arguments)
