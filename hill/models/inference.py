"""Saved models and prediction: write and load the folder of a model, and run a model on a device.

A saved model has taxonomy, tokenizer, settings and weights in one folder, without pickle. Nothing here needs an
optimiser or other processes.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from hill.data.batches import DeviceDocuments, collate, move, reading_order, to_device
from hill.data.tokens import Tokens
from hill.data.windows import overlap
from hill.encoders.int8 import cpu_has_int8
from hill.encoders.lora import merged_weights
from hill.encoders.packed import Weights, int8_weights, use_weights
from hill.encoders.transformer import plain
from hill.errors import CheckpointError, ConfigError, HillError
from hill.io import (
    CARD,
    CHECKSUMS,
    check_folder,
    check_model,
    error_reason,
    finish_save,
    read_json,
    save_folder,
    unusable,
    write_json,
)
from hill.models import MODELS
from hill.models.base import HTCModel, ModelConfig, empty_text_encoder
from hill.settings import Groups, make
from hill.sparse import Matrix, max_entries, top_k_matrix
from hill.taxonomy import Taxonomy
from hill.types import AnyBatch, Encoded, IntArray

MODEL_FORMAT = "hill-model"
MODEL_VERSION = 1
WEIGHTS = "model.safetensors"
REMOVED_SETTINGS: Groups = {
    "train": {"compile": False, "stages": "one", "contrast_epochs": 2, "head_lr": 3e-3},
    "data": {"overlap": 32, "pool": "mean"},
    "decode": {"support": 10},
}
"""Settings of earlier versions, with the value that means "not used"; for those of models see `ModelConfig.REMOVED`."""
BATCH_SIZE = 64
"""Documents per padded batch."""
BATCH_TOKENS = 65_536
"""Tokens per packed batch."""
VECTOR_BATCH = 512
"""Documents per batch of vectors."""
MIN_WIDTH = 256
"""A CPU multiplies the matrices of narrower encoders as fast in fp32 as in bf16 or int8."""

if hasattr(os, "register_at_fork"):  # a forked child does not have torch's threads and would wait for them forever
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


# Saved models


@dataclass(frozen=True)
class SavedModel:
    """A model with everything that it is used with: taxonomy, tokenizer, and the settings of all groups."""

    name: str
    model: HTCModel
    taxonomy: Taxonomy
    tokenizer: Tokenizer
    settings: Groups

    def save(
        self,
        folder: Path,
        documents: dict[str, Any],
        card: str = "",
        members: Mapping[str, "SavedModel"] | None = None,
    ) -> None:
        """Write the model, these JSON documents, the model card, and members into subfolders: all or nothing.

        An earlier model in the folder is replaced; no other file is changed.
        """
        config_file = folder / "config.json"
        if os.path.isfile(config_file) and (found := read_json(config_file).get("format")) != MODEL_FORMAT:
            raise CheckpointError(f"'{folder}' has the format {found!r}; choose another folder for the model")
        with save_folder(folder) as draft:
            self._write(draft, documents)
            if card:
                (draft / CARD).write_text(card, encoding="utf-8")
            for name, member in (members or {}).items():
                member._write(draft / name, {})

    def _write(self, folder: Path, documents: dict[str, Any]) -> None:
        files = {
            "config.json": {
                "format": MODEL_FORMAT,
                "version": MODEL_VERSION,
                "model": self.name,
                "pooling": self.model.text.pooling,
                "settings": self.settings,
                "assets": sorted(self.model.assets),
            },
            "taxonomy.json": self.taxonomy.to_dict(),
            "tokenizer.json": json.loads(self.tokenizer.to_str()),
        }
        folder.mkdir(exist_ok=True)
        write_tensors(folder / WEIGHTS, {name: value.cpu() for name, value in merged_weights(self.model).items()})
        for name, document in (files | self.model.text.documents() | self.model.assets | documents).items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_json(folder / name, document)


def load_saved(folder: Path) -> SavedModel:
    """Load a saved model on the CPU; a missing, damaged or foreign file is a `CheckpointError` that names it."""
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"'{folder}' {state}; give the folder of a saved model")
    check_model(folder)
    finish_save(folder)
    config = read_json(folder / "config.json")
    if config.get("format") != MODEL_FORMAT or config.get("version") != MODEL_VERSION:
        raise CheckpointError(
            f"'{folder / 'config.json'}' has the format {config.get('format')!r}, version {config.get('version')!r}; "
            f"expected {MODEL_FORMAT!r}, version {MODEL_VERSION}"
        )
    if (folder / CHECKSUMS).exists():  # models of early versions have no checksums
        check_folder(folder)
    try:
        return _build(folder, config)
    except HillError as error:
        raise error if isinstance(error, CheckpointError) else CheckpointError(f"'{folder}': {error}") from None
    except Exception as error:  # any type: the files may come from anywhere
        raise unusable(folder, error) from error


def _build(folder: Path, config: dict[str, Any]) -> SavedModel:
    name = config["model"]
    kind, settings = MODELS[name], upgrade_settings(name, config["settings"], folder)
    taxonomy = Taxonomy.from_dict(read_json(folder / "taxonomy.json"), str(folder / "taxonomy.json"))
    model_config: ModelConfig = make(kind.Config, settings["model"], "model")
    tokenizer = plain(Tokenizer.from_file(str(folder / "tokenizer.json")))
    text = empty_text_encoder(model_config, folder, tokenizer, config["pooling"])
    assets = {name: read_json(folder / name) for name in config["assets"]}
    model = kind(text, taxonomy, model_config, assets)
    weights = read_tensors(folder / WEIGHTS)
    for weight_name, weight in weights.items():
        # the sum shows a value that is not finite in one pass, but the sum itself can overflow
        if weight.is_floating_point() and not weight.sum().isfinite() and not weight.isfinite().all():
            raise CheckpointError(
                f"the weight '{weight_name}' in '{folder / WEIGHTS}' has a value that is infinite or not a number; "
                "copy the model again or train it again"
            )
    load_weights(model, weights, folder)
    return SavedModel(name, model.eval(), taxonomy, tokenizer, settings)


def upgrade_settings(model: str, saved: Groups, folder: Path, resume: bool = False) -> Groups:
    """Drop settings that were removed since a model was saved; raise if a dropped one was used.

    Settings of training and decoding only matter to a training that is resumed, not to a trained model, which has its
    weights and thresholds.
    """
    upgraded = {group: dict(values) for group, values in saved.items()}
    data = upgraded.get("data", {})
    if "overlap" in data and data["overlap"] == overlap(data.get("max_length", 512)):
        del data["overlap"]
    removed: Groups = {"model": MODELS.get(model, HTCModel).Config.REMOVED, **REMOVED_SETTINGS}
    for group, unused_values in removed.items():
        for name, unused in unused_values.items():
            value = upgraded.get(group, {}).pop(name, unused)
            if unused is not None and value != unused and (group in ("model", "data") or resume):
                raise CheckpointError(
                    f"'{folder}' was made with {group}.{name} = {value!r}, which no longer exists; train it again, or "
                    "use an earlier version of hill"
                )
    return upgraded


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file."""
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)


def read_tensors(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Read the tensors of a safetensors file."""
    try:
        return load_file(file, device=device)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error_reason(error)}") from None


def load_weights(module: torch.nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Set the weights of a module; names and shapes must match exactly."""
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise CheckpointError(f"the weights in '{folder}' do not fit the model: {detail}") from None


# Prediction


class Inference:
    """A model on a device, ready for forward passes without gradients.

    Args:
        model: the model; it is moved to the device.
        device: the device.
        precision: fp32, bf16, or auto: bf16 if the device multiplies it faster. Weights stay fp32.
        trained: whether the weights no longer change. On a CPU with VNNI but no bf16, auto then multiplies the
            matrices of the encoder in int8, which are quantised once.
    """

    def __init__(self, model: HTCModel, device: torch.device, precision: str = "auto", trained: bool = False) -> None:
        self.model = model.to(device)
        self.device = device
        self.precision = precision
        self.trained = trained
        self._int8_weights: Weights | None = None

    @property
    def bf16(self) -> bool:
        """Whether matrices are multiplied in bf16."""
        if self.precision != "auto":
            return self.precision == "bf16"
        if self.device.type == "cuda":
            return bool(torch.cuda.is_bf16_supported())
        return self._packs_wide and cpu_has_bf16()

    @property
    def int8(self) -> bool:
        """Whether scores are computed with the matrices of the encoder in int8: if the CPU has VNNI but no bf16."""
        if not self.trained or self.precision != "auto" or self.device.type != "cpu":
            return False
        return self._packs_wide and not cpu_has_bf16() and cpu_has_int8()

    @property
    def _packs_wide(self) -> bool:
        """Whether batches can be packed and the encoder is wide enough for less than fp32 on a CPU."""
        text = self.model.text
        return text.packs and text.width >= MIN_WIDTH

    @property
    def packed(self) -> bool:
        """Whether batches are packed instead of padded: if the text encoder can read them, on a GPU only in bf16."""
        return self.model.text.packs and (self.bf16 or self.device.type == "cpu")

    def autocast(self) -> AbstractContextManager[object]:
        """Mixed precision, if configured; for forward passes only."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    @contextmanager
    def tf32(self) -> Iterator[None]:
        """With bf16, multiply the remaining fp32 matrices in TF32."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.bf16 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def scores(self, documents: Tokens | Tensor, keep: int = 0) -> Iterator[tuple[IntArray, Matrix]]:
        """Yield the indices of the documents of a batch (B) and their scores (B, L), the longest documents first.

        Documents are given as tokens, or as vectors of a frozen encoder (documents, D).
        Scores are sparse, with the `keep` highest per document, if `keep` is given or the labels are very many; the
        full matrix is then never built. The device computes the next batch while the caller uses the last one.
        """
        model = self.model.eval()
        if self.int8 and self._int8_weights is None:
            self._int8_weights = int8_weights(model.text.encoder)
        labels = sum(map(len, model.levels))
        k = max_entries(keep, labels)
        previous: Callable[[], tuple[IntArray, Matrix]] | None = None
        for rows, batch in self.batches(documents):
            with torch.inference_mode(), self.tf32(), self.autocast(), use_weights(self._int8_weights):
                outputs = model.top_k(batch, k) if k else (model.scores(model(batch).logits),)
                copies = [self.gather(each, rows).to("cpu", non_blocking=True) for each in outputs]
            copied = torch.cuda.current_stream().record_event() if self.device.type == "cuda" else None
            if previous:
                yield previous()
            previous = partial(_to_matrix, rows, copies, copied, labels)
        if previous:
            yield previous()

    def vectors(self, tokens: Tokens) -> Iterator[tuple[IntArray, Tensor]]:
        """Yield the indices of the documents of a batch (B) and the vectors of the text encoder (B, D)."""
        self.model.eval()
        for documents, batch in self.batches(tokens):
            with torch.inference_mode(), self.tf32(), self.autocast():
                vectors = self.gather(self.model.text.read(batch), documents)
            yield documents, vectors.float()

    def batches(self, tokens: Tokens | Tensor) -> Iterator[tuple[IntArray, AnyBatch]]:
        """Yield the indices of the documents of a batch and, on the device, this process's shard of the batch."""
        if isinstance(tokens, Tensor):
            for documents in np.split(np.arange(len(tokens)), range(VECTOR_BATCH, len(tokens), VECTOR_BATCH)):
                yield documents, Encoded(tokens[torch.from_numpy(self.shard(documents))].to(self.device))
            return
        pad = self.model.text.pad
        if not self.packed:
            for documents in reading_order(tokens.lengths, BATCH_SIZE * self.n_shards):
                yield documents, to_device(collate(tokens, None, self.shard(documents), pad), self.device)
            return
        resident = DeviceDocuments(tokens, None, pad, self.device)
        by_tokens = self.device.type == "cuda" and self.model.vector_only  # states of tokens need much memory
        size, budget = (0, BATCH_TOKENS) if by_tokens else (BATCH_SIZE, 0)
        for documents in reading_order(tokens.lengths, size * self.n_shards, budget * self.n_shards):
            shard = self.shard(documents)
            yield documents, resident.packed(move(torch.from_numpy(shard), self.device), resident.size(shard))

    @property
    def n_shards(self) -> int:
        """The number of processes that share each batch; a subclass may split batches, see `shard` and `gather`."""
        return 1

    def shard(self, documents: IntArray) -> IntArray:
        """The documents of a batch that this process reads: all of them."""
        return documents

    def gather(self, rows: Tensor, documents: IntArray) -> Tensor:
        """The rows of all documents of a batch, given the rows of this process's shard."""
        return rows


def _to_matrix(
    documents: IntArray, outputs: Sequence[Tensor], copied: torch.cuda.Event | None, labels: int
) -> tuple[IntArray, Matrix]:
    """The scores of these documents, once the device has copied them."""
    if copied is not None:
        copied.synchronize()
    scores = outputs[0].float().numpy()
    return documents, scores if len(outputs) == 1 else top_k_matrix(scores, outputs[1].numpy(), labels)


@cache
def cpu_has_bf16() -> bool:
    """Whether the CPU has instructions for bf16 matrix products: AVX-512 BF16 or AMX."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def find_device(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception as error:  # each backend raises its own type
        reason = str(error).split("\n")[0].split(". ")[0][:200]
        raise ConfigError(
            f"the device is '{name}', which cannot be used here ({reason}); expected auto, cpu, or cuda with a GPU"
        ) from None
    return device
