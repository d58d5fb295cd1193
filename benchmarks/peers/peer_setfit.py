"""SetFit: a sentence encoder that is tuned on pairs of texts, then a logistic regression on its vectors.

- setfit: batches of 32 pairs, 300 steps, learning rate 2e-5 of the encoder and the default head. Grid: none, since a
  second setting would double the longest training; 2e-5 is the default of SetFit.

SetFit is made for few documents. Pairs are drawn from at most 2,000 of them, because the number of pairs is quadratic
and all of them are listed; the head is fitted on all documents. Pairs are positive if they share a label, which with
ancestors would be nearly all, so only the most specific labels are given. With one of them per document this is a
classification into these labels (best path, or a threshold on the probabilities), otherwise one-vs-rest.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from common import SEED, Peer, Scores, close, main, specific
from setfit import SetFitModel, Trainer, TrainingArguments

from hill.data import Documents

MAX_LENGTH = 256
PAIRED = 2_000
"""Most documents of which pairs are made."""
STEPS, BATCH = 300, 32


class SetFit(Peer):
    """SetFit with one-vs-rest or multi-class heads."""

    PACKAGES = ("setfit", "sentence-transformers", "transformers", "torch")

    def grid(self) -> list[dict[str, Any]]:
        """One setting."""
        return [{"steps": STEPS, "batch": BATCH, "lr": 2e-5}]

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """Tune the encoder on pairs of some documents, then fit the head on all."""
        kind = {} if self.task.one_path else {"multi_target_strategy": "one-vs-rest"}
        model = SetFitModel.from_pretrained(self.task.encoder, device=self.task.device, **kind)
        model.model_body.float().max_seq_length = MAX_LENGTH
        arguments = TrainingArguments(
            batch_size=settings["batch"],
            max_steps=settings["steps"],
            body_learning_rate=settings["lr"],
            use_amp=self.task.device == "cuda",
            seed=SEED,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            show_progress_bar=False,
        )
        trainer = Trainer(model=model, args=arguments)
        few = train.sample(PAIRED)
        labels, columns = self._labels(train)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train_embeddings(list(few.texts), self._labels(few, columns)[0], args=arguments)
            trainer.train_classifier(list(train.texts), labels, args=arguments)
        return model, columns

    def _labels(self, documents: Documents, columns: Any = None) -> tuple[Any, Any]:
        """The most specific label of each document, or a list of 0 and 1; and the labels that are columns."""
        ends = specific(documents.labels, self.task.taxonomy)
        columns = np.unique(ends.indices) if columns is None else columns
        if self.task.one_path:
            return np.searchsorted(columns, ends.indices).tolist(), columns
        return ends[:, columns].toarray().astype(int).tolist(), columns

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Probabilities of the most specific labels, and for others the highest below them: (texts, L)."""
        fitted, columns = model
        with torch.inference_mode():
            found = np.asarray(fitted.predict_proba(list(texts), batch_size=128, as_numpy=True))
        scores = np.zeros((len(texts), len(self.task.taxonomy)), dtype=np.float32)
        known = fitted.model_head.classes_ if self.task.one_path else np.arange(len(columns))
        scores[:, columns[np.asarray(known)]] = found
        closed: Scores = close(scores, self.task.taxonomy)
        return closed

    def save(self, model: Any, folder: Path) -> None:
        """What `save_pretrained` writes, without the model card, which fails with huggingface_hub 1.33."""
        fitted, _ = model
        fitted.model_body.save(str(folder), create_model_card=False)
        joblib.dump(fitted.model_head, folder / "model_head.pkl")


if __name__ == "__main__":
    main({"setfit": SetFit})
