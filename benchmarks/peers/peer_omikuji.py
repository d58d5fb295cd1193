"""omikuji: label trees for very many labels, on TF-IDF vectors; the engine behind a backend of Annif.

- omikuji-parabel: two branches per node, 3 trees. Grid: words, or words and characters (short texts only).
- omikuji-bonsai: up to 100 branches per node, not balanced, depth of at most 3, 3 trees, as Annif's documentation has
  it. Grid: the same.

Features are those of peer_sklearn.py; labels are given with their ancestors. Scores are those of the 50 best labels.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import joblib
import numpy as np
import omikuji
from common import Peer, Scores, main
from peer_sklearn import is_short, vectorizers
from scipy.sparse import hstack

from hill.data import Documents

TOP, BEAM = 50, 50


class Omikuji(Peer):
    """Label trees."""

    PACKAGES = ("omikuji",)
    BONSAI = False

    def grid(self) -> list[dict[str, Any]]:
        """Features."""
        names = ("words", "words+characters") if is_short(self.task.train.texts) else ("words",)
        return [{"features": name} for name in names]

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """Write the vectors in the format of the Extreme Classification Repository, and train on that file."""
        parts = vectorizers(settings["features"])
        vectors = hstack([part.fit_transform(train.texts) for part in parts], format="csr")
        vectors.sort_indices()
        tree = omikuji.Model.default_hyper_param()
        if self.BONSAI:
            tree.cluster_k, tree.cluster_balanced, tree.max_depth = 100, False, 3
        with TemporaryDirectory() as folder:
            file = Path(folder) / "train.txt"
            self._write(file, vectors, train.labels)
            return parts, omikuji.Model.train_on_data(str(file), tree, n_threads=self.task.threads)

    @staticmethod
    def _write(file: Path, vectors: Any, labels: Any) -> None:
        with file.open("w", encoding="ascii") as lines:
            lines.write(f"{np.count_nonzero(np.diff(vectors.indptr))} {vectors.shape[1]} {labels.shape[1]}\n")
            for row in range(vectors.shape[0]):
                if vectors.indptr[row] == vectors.indptr[row + 1]:
                    continue  # a line without features is an error
                own = ",".join(map(str, labels.indices[labels.indptr[row] : labels.indptr[row + 1]].tolist()))
                entries = slice(vectors.indptr[row], vectors.indptr[row + 1])
                pairs = zip(vectors.indices[entries].tolist(), vectors.data[entries].tolist(), strict=True)
                lines.write(f"{own} {' '.join(f'{column}:{value:.5g}' for column, value in pairs)}\n")

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Scores of the best labels: (texts, L); 0 for others."""
        parts, trees = model
        vectors = hstack([part.transform(texts) for part in parts], format="csr")
        scores = np.zeros((len(texts), len(self.task.taxonomy)), dtype=np.float32)
        for row in range(len(texts)):
            entries = slice(vectors.indptr[row], vectors.indptr[row + 1])
            pairs = list(zip(vectors.indices[entries].tolist(), vectors.data[entries].tolist(), strict=True))
            for label, score in trees.predict(pairs, beam_size=BEAM, top_k=TOP):
                scores[row, label] = score
        return scores

    def save(self, model: Any, folder: Path) -> None:
        """The vectorizers and the folder of omikuji."""
        parts, trees = model
        joblib.dump(parts, folder / "tfidf.joblib")
        shutil.rmtree(folder / "omikuji", ignore_errors=True)
        trees.save(str(folder / "omikuji"))


class Bonsai(Omikuji):
    """Shallow label trees."""

    BONSAI = True


if __name__ == "__main__":
    main({"omikuji-parabel": Omikuji, "omikuji-bonsai": Bonsai})
