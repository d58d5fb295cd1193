"""Hugging Face Trainer: AutoModelForSequenceClassification with problem_type multi_label_classification, a flat head.

- trainer: batches of 64 (32 with fewer than 4,000 documents), linear decay with a tenth of warm-up, 256 tokens, bf16 on
  a GPU, about 1,500 steps (3 to 15 epochs). Grid: learning rate of 1e-4 and 3e-4, tried on 2,000 documents.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common import SEED, Peer, Scores, main
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer
from transformers import TrainingArguments as Arguments

from hill.data import Documents

MAX_LENGTH = 256
STEPS = 1_500
SMALL = 4_000


class Flat(Peer):
    """A transformer with one logit per label."""

    PACKAGES = ("transformers", "accelerate", "torch")

    def grid(self) -> list[dict[str, Any]]:
        """Learning rates."""
        return [{"lr": 1e-4}, {"lr": 3e-4}]

    def grid_documents(self) -> int:
        """Some of the documents."""
        return 2_000

    def fit(self, train: Documents, settings: Mapping[str, Any]) -> Any:
        """Fine-tune."""
        tokenizer = AutoTokenizer.from_pretrained(self.task.encoder)
        model = AutoModelForSequenceClassification.from_pretrained(
            self.task.encoder, num_labels=len(self.task.taxonomy), problem_type="multi_label_classification"
        ).float()
        size = 32 if len(train) < SMALL else 64
        epochs = min(max(round(STEPS * size / len(train)), 3), 15)
        labels = train.labels.toarray().astype(np.float32)
        rows = [
            {"input_ids": tokens, "labels": labels[row]}
            for row, tokens in enumerate(self._tokens(tokenizer, train.texts))
        ]
        with TemporaryDirectory() as folder:
            arguments = Arguments(
                folder,
                per_device_train_batch_size=size,
                per_device_eval_batch_size=256,
                learning_rate=settings["lr"],
                num_train_epochs=epochs,
                warmup_steps=0.1,
                bf16=self.task.device == "cuda",
                use_cpu=self.task.device == "cpu",
                seed=SEED,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            )
            trainer = Trainer(model, arguments, DataCollatorWithPadding(tokenizer), rows)
            trainer.train()
        return trainer, tokenizer

    @staticmethod
    def _tokens(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=MAX_LENGTH)["input_ids"]
        return found

    def scores(self, model: Any, texts: Sequence[str]) -> Scores:
        """Probabilities: (texts, L)."""
        trainer, tokenizer = model
        tokens = self._tokens(tokenizer, texts)
        order = np.argsort([len(each) for each in tokens])
        logits = trainer.predict([{"input_ids": tokens[row]} for row in order]).predictions
        scores = np.empty((len(texts), len(self.task.taxonomy)), dtype=np.float32)
        scores[order] = torch.from_numpy(np.asarray(logits)).float().sigmoid().numpy()
        return scores

    def save(self, model: Any, folder: Path) -> None:
        """The folder of `save_pretrained`."""
        for part in (model[0].model, model[1]):
            part.save_pretrained(folder)


if __name__ == "__main__":
    main({"trainer": Flat})
