"""fastText: a shallow model on words and pairs of words, trained with one-vs-all loss on labels and their ancestors.

- fasttext: vectors of 100 numbers, 200,000 buckets. Grid: learning rate of 0.5 and 1 × 50, 100 and 200 epochs, tried on
  4,000 documents. Texts of 300 characters or fewer on average also use n-grams of 3 to 5 characters.

`fasttext` has no wheels and does not predict with numpy 2; `fasttext-numpy2` is the same code with that repaired.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fasttext
import numpy as np
from common import SEED, Peer, Scores, main
from peer_sklearn import is_short

from hill.data import Documents

PREFIX = "__label__"


def clean(text: str) -> str:
    """Lower case, with spaces around punctuation, as the documentation of fastText recommends; one line."""
    return " ".join(re.sub(r"([^\w\s])", r" \1 ", text.lower()).split())


class FastText(Peer):
    """Supervised fastText."""

    PACKAGES = ("fasttext-numpy2",)

    def grid(self) -> list[dict[str, Any]]:
        """Learning rate × epochs."""
        return [{"lr": rate, "epochs": epochs} for rate in (0.5, 1.0) for epochs in (50, 100, 200)]

    def grid_documents(self) -> int:
        """Some of the documents."""
        return 4_000

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """Write one line per document and train on that file."""
        labels = train.labels
        characters = {"minn": 3, "maxn": 5} if is_short(train.texts) else {}
        with TemporaryDirectory() as folder:
            file = Path(folder) / "train.txt"
            with file.open("w", encoding="utf-8") as lines:
                for row, text in enumerate(train.texts):
                    own = labels.indices[labels.indptr[row] : labels.indptr[row + 1]].tolist()
                    lines.write(" ".join(f"{PREFIX}{label}" for label in own) + f" {clean(text)}\n")
            return fasttext.train_supervised(
                str(file),
                lr=settings["lr"],
                epoch=settings["epochs"],
                loss="ova",
                wordNgrams=2,
                minCount=1,
                bucket=200_000,
                thread=self.task.threads,
                seed=SEED,
                verbose=0,
                **characters,
            )

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Probabilities of all labels that train has: (texts, L)."""
        scores = np.zeros((len(texts), len(self.task.taxonomy)), dtype=np.float32)
        found, probabilities = model.predict([clean(text) for text in texts], k=-1)
        for row, (labels, values) in enumerate(zip(found, probabilities, strict=True)):
            scores[row, [int(label.removeprefix(PREFIX)) for label in labels]] = values
        return scores

    def save(self, model: Any, folder: Path) -> None:
        """The file of fastText."""
        model.save_model(str(folder / "model.bin"))


if __name__ == "__main__":
    main({"fasttext": FastText})
