"""Nothing that others wrote is run or believed: model folders, encoders, texts, labels, requests."""

import asyncio
import json
import os
import pickle
import resource
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from huggingface_hub import snapshot_download
from typer.testing import CliRunner

from hill.bulk import Cut
from hill.bulk.source import find_parts
from hill.card import make_card, read_facts
from hill.classifier import HillClassifier
from hill.cli.common import app
from hill.data.documents import label_documents
from hill.encoders import transformer as pretrained
from hill.encoders.transformer import load_pretrained
from hill.errors import CheckpointError, HillError
from hill.explain import explain
from hill.export import OnnxClassifier
from hill.io import sha256
from hill.report import make_report
from hill.research.tables import Section, html, markdown
from hill.serve import ServeConfig
from hill.serve.app import make_app
from hill.serve.registry import ModelRegistry
from hill.taxonomy import Label, Taxonomy
from tests.conftest import animals_taxonomy, toy_documents
from tests.fixtures.make import MODELS

SECONDS, PATIENCE, BYTES = 10, 6, 1 << 30
COMMIT = "0123456789abcdef0123456789abcdef01234567"
HOSTILE = (
    "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028'\"` "
    "[x](javascript:alert(1)) &lt;"
)
ALLOWED = (
    "a article b body br button caption circle div figcaption figure h1 h2 h3 head html i img input label li line main "
    "meta nav p path polyline rect script section span style svg table tbody td text th thead title tr ul"
)
Harm = Callable[[Path], object]


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that exists once code of others was run."""
    return tmp_path / "ran"


class Evil:
    """What makes a file when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> Any:
        return open, (str(self.ran), "w")


def test_the_canary_sings(ran: Path) -> None:
    pickle.loads(pickle.dumps(Evil(ran))).close()
    assert ran.exists()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of HILL that may be spoilt."""
    return Path(shutil.copytree(MODELS / "0.1.0" / "hill", tmp_path / "model"))


def edit(file: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def vouch(folder: Path) -> None:
    """Write the sums of a folder anew, as whoever made it would."""
    plain = [
        file for file in folder.rglob("*") if file.is_file() and not file.is_symlink() and file.name != "files.json"
    ]
    sums = {str(file.relative_to(folder)): sha256(file) for file in plain if file.stat().st_size < 1e8}
    (folder / "files.json").write_text(json.dumps(sums))


def refused(act: Callable[[], object], match: str | None = None) -> None:
    """It is refused with an error of ours, soon, and without much memory."""
    begun, start, before = time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HillError, match=match):
        act()
    assert time.process_time() - start < SECONDS and time.perf_counter() - begun < PATIENCE * SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BYTES


def link(file: Path, target: str) -> None:
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    file.symlink_to(target)


def grow(file: Path) -> None:
    with file.open("r+b") as content:
        content.truncate(3 << 30)


def header(file: Path, size: int, document: dict[str, Any]) -> None:
    content = json.dumps(document).encode()
    file.write_bytes(struct.pack("<Q", size or len(content)) + content + bytes(60_000))


def config(key: str, value: Any) -> Harm:
    return lambda folder: edit(folder / "config.json", lambda found: found.update({key: value}))


def encoder(**values: Any) -> Harm:
    return lambda folder: edit(folder / "encoder" / "config.json", lambda found: found.update(values))


def text(name: str, content: str) -> Harm:
    return lambda folder: (folder / name).write_text(content)


def named(*names: str) -> Harm:
    """Names in files.json; the sums of what they name are right, where it is there."""
    sums = {name: sha256(Path("/", name.replace("../", ""))) for name in names if name.endswith("passwd")}
    return lambda folder: edit(folder / "files.json", lambda found: found.update(dict.fromkeys(names, "") | sums))


FLOATS = {"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
HARMS: dict[str, tuple[Harm, str]] = {
    "link to a file": (lambda folder: link(folder / "taxonomy.json", "/etc/passwd"), "leads out of its folder"),
    "relative link": (lambda folder: link(folder / "tokenizer.json", "../t.json"), "leads out of its folder"),
    "link to weights": (lambda folder: link(folder / "model.safetensors", "../w"), "leads out of its folder"),
    "link to a folder": (lambda folder: link(folder / "encoder", "/etc"), "leads out of its folder"),
    "link in a folder": (lambda folder: link(folder / "encoder" / "config.json", "../../c"), "leads out of its folder"),
    "link in a circle": (lambda folder: link(folder / "metrics.json", "metrics.json"), "neither a file nor a folder"),
    "pipe": (
        lambda folder: ((folder / "config.json").unlink(), os.mkfifo(folder / "config.json")),
        "neither a file nor a folder",
    ),
    "absolute name": (config("assets", ["/etc/passwd"]), "names '/etc/passwd'; expected files of its own folder"),
    "name above": (config("assets", ["../label_counts.json"]), "expected files of its own folder"),
    "name of Windows": (config("assets", ["..\\label_counts.json"]), "expected files of its own folder"),
    "no names": (config("assets", {"a": 1}), "expected files of its own folder"),
    "absolute sum": (named("/etc/passwd"), "expected files of its own folder"),
    "sum above": (named("../" * 9 + "etc/passwd"), "expected files of its own folder"),
    "deep sum": (named("a/b/c/d"), "at most 2 folders down"),
    "large tokenizer": (lambda folder: grow(folder / "tokenizer.json"), "3,221,225,472 bytes"),
    "large taxonomy": (lambda folder: grow(folder / "taxonomy.json"), "3,221,225,472 bytes"),
    "large config": (lambda folder: grow(folder / "config.json"), "3,221,225,472 bytes"),
    "deep config": (text("config.json", "[" * 200_000), "nested too deep"),
    "deep thresholds": (text("thresholds.json", "[" * 200_000), "nested too deep"),
    "deep tokenizer": (text("tokenizer.json", "[" * 200_000), "Tokenizer"),
    "deep taxonomy": (text("taxonomy.json", "[" * 200_000), "nested too deep"),
    "config of another kind": (text("config.json", "[]"), "does not contain a JSON object"),
    "unknown model": (config("model", "os.system"), "os.system"),
    "settings of another kind": (config("settings", [1]), "not a usable model"),
    "hashes of another kind": (text("seen.json", '{"hashes": 3}'), "no base64 of 64-bit hashes"),
    "deep hashes": (text("seen.json", "[" * 200_000), "nested too deep"),
    "text as thresholds": (text("thresholds.json", '{"labels": ["x"]}'), "no number for each of the 7 labels"),
    "too few thresholds": (text("thresholds.json", '{"labels": [0.5]}'), "no number for each of the 7 labels"),
    "header without end": (lambda folder: header(folder / "model.safetensors", 2**62, {}), "header too large"),
    "header longer than its file": (lambda folder: header(folder / "model.safetensors", 90_000, {}), "header"),
    "weights beyond the file": (lambda folder: header(folder / "model.safetensors", 0, FLOATS), "not fully covered"),
    "weights beyond memory": (
        lambda folder: header(folder / "model.safetensors", 0, {"x": FLOATS["x"] | {"data_offsets": [0, 60_000]}}),
        "invalid shape",
    ),
    "code": (encoder(model_type="evil", auto_map={"AutoConfig": "evil.Evil"}), "code of its own, which is never run"),
    "kernel": (encoder(_attn_implementation="kernels-community/x"), "could run code"),
    "kernel inside": (encoder(_attn_implementation_internal="evil/x"), "could run code"),
    "kernels": (encoder(sub={"attn_implementation": {"": "evil/x"}}), "could run code"),
    "quantisation": (encoder(quantization_config={"quant_method": "x"}), "could run code"),
    "other weights": (encoder(transformers_weights="adapter_model.bin"), "could run code"),
    "many words": (encoder(vocab_size=10**10), "describes an encoder of 320,0"),
    "many layers": (encoder(num_hidden_layers=10**8), "num_hidden_layers = 100000000"),
    "no encoder": (encoder(hidden_size=-8), "does not describe an encoder"),
}  # fmt: skip
KEEP_SUMS = ("absolute sum", "sum above", "deep sum")


@pytest.mark.parametrize("name", HARMS)
def test_a_model_folder_made_to_harm_is_refused(name: str, model: Path) -> None:
    spoil, match = HARMS[name]
    spoil(model)
    if name not in KEEP_SUMS:
        vouch(model)
    refused(lambda: HillClassifier.load(model), match)
    refused(lambda: HillClassifier.from_pretrained(model), match)


def command(*words: str) -> Callable[[Path], object]:
    def run(folder: Path) -> object:
        arguments = [str(folder) if word == "MODEL" else word for word in words]
        return CliRunner().invoke(app, arguments, catch_exceptions=False)

    return run


def warm_start(folder: Path) -> object:
    settings: Any = {"train": {"warm_start": str(folder), "epochs": 1}}
    return HillClassifier(animals_taxonomy(), "hill", settings, preset=None).fit(*toy_documents(16, 1))


WAYS: dict[str, Callable[[Path], object]] = {
    "load": HillClassifier.load,
    "from_pretrained": HillClassifier.from_pretrained,
    "warm start": warm_start,
    "predict": command("predict", "MODEL", "a text"),
    "explain": command("explain", "MODEL", "a text"),
    "export": command("export", "MODEL", "--onnx", "never"),
    "serve": command("serve", "MODEL", "--port", "0"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_pickles_are_never_opened(way: str, kind: str, model: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hill.serve.app.bind", lambda config, review: nullcontext())
    weights = {"head.weight": torch.zeros(7, 8), "evil": Evil(ran)}
    for name in ("model.safetensors", "pytorch_model.bin", "model.pt", "model.pkl", "encoder/pytorch_model.bin"):
        if kind == "torch":
            torch.save(weights, model / name)
        else:
            (model / name).write_bytes(pickle.dumps(weights).ljust(60_000, b"."))
    vouch(model)
    refused(lambda: WAYS[way](model))
    (model / "model.safetensors").unlink()
    vouch(model)
    refused(lambda: WAYS[way](model))
    assert not ran.exists()


@pytest.mark.parametrize("way", [*WAYS, "cli warm start"])
@pytest.mark.parametrize("name", ["pipe", "link to a folder", "large config", "large tokenizer"])
def test_whichever_way_it_is_loaded(way: str, name: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hill.serve.app.bind", lambda config, review: nullcontext())
    HARMS[name][0](model)
    vouch(model)
    train = command(
        "train", "never", "--taxonomy", str(model / "taxonomy.json"), "--out", "never", "--warm-start", "MODEL"
    )
    refused(lambda: {**WAYS, "cli warm start": train}[way](model), HARMS[name][1])


EXPORTS: dict[str, tuple[Harm, str]] = {
    name: HARMS[name]
    for name in (
        "pipe",
        "relative link",
        "absolute sum",
        "sum above",
        "large tokenizer",
        "deep thresholds",
        "deep config",
    )
} | {
    "no settings": (text("config.json", '{"format": "hill-onnx", "version": 1}'), "not a usable model"),
    "no graph": (text("model.onnx", "x"), "cannot be run"),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_exported_folder_made_to_harm_is_refused(name: str, exported: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    EXPORTS[name][0](folder)
    if name not in KEEP_SUMS:
        vouch(folder)
    refused(lambda: OnnxClassifier.load(folder), EXPORTS[name][1])


def test_a_terminal_is_not_steered(tmp_path: Path) -> None:
    steer = "\x1b]0;broken\x07\x1b[31m\x9b1m\rx"
    taxonomy = Taxonomy([Label(f"a{steer}", f"A{steer}"), Label("b", "B")])
    texts = [text for i in range(6) for text in (f"alpha{steer} {i}", f"beta {i}")]
    HillClassifier(taxonomy, "linear", preset=None).fit(texts, [[f"a{steer}"], ["b"]] * 6).save(tmp_path / "model")
    for folder, names in {"one": "A", "two": f"B{steer}"}.items():
        lines = [{"id": "x", "name": names}, {"id": f"y{steer}", "name": folder}]
        (tmp_path / f"{folder}.json").write_text(json.dumps(lines))
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": "x", "labels": [f"none{steer}"]}) + "\n")
    asked: list[list[str]] = [
        ["predict", str(tmp_path / "model"), f"alpha{steer}"],
        ["explain", str(tmp_path / "model"), f"alpha{steer}"],
        ["taxonomy", "diff", str(tmp_path / "one.json"), str(tmp_path / "two.json")],
        ["check", str(tmp_path / "data.jsonl"), "--taxonomy", str(tmp_path / "one.json")],
    ]
    for words in asked:
        output = CliRunner().invoke(app, words, catch_exceptions=False).output
        assert "\\x1b" in output and not set(output) & {"\x1b", "\x07", "\x9b", "\r"}, words


def test_pickles_beside_the_weights_are_left_alone(model: Path, ran: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(ran)))
    assert HillClassifier.load(model).predict(["leaf"]) and not ran.exists()


def test_a_checkpoint_is_no_pickle(tiny_encoder: Path, tmp_path: Path, ran: Path) -> None:
    def training(resume: bool) -> Any:
        settings: Any = {"model": {"encoder": str(tiny_encoder)}, "train": {"epochs": 3, "checkpoint_seconds": 0}}
        documents = label_documents(*toy_documents(16, 1), animals_taxonomy())
        return HillClassifier(animals_taxonomy(), "flat", settings, preset=None).training(
            {"train": documents}, tmp_path / "out", resume
        )

    for _ in training(resume=False):
        if states := list((tmp_path / "out" / "checkpoints").glob("state-*")):
            break
    for name in ("weights", "optimiser", "random", "best"):
        for state in states:
            (state / f"{name}.safetensors").write_bytes(pickle.dumps(Evil(ran)).ljust(99, b"."))
            vouch(state)
    refused(lambda: list(training(resume=True)), "safetensors' cannot be read")
    assert not ran.exists()


def shards(file: str) -> Callable[[Path, Path], object]:
    def spoil(folder: Path, ran: Path) -> None:
        (folder / "model.safetensors").rename(folder / "other.safetensors")
        torch.save({"evil": Evil(ran)}, folder / "evil.bin")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))

    return spoil


def setting(**values: Any) -> Callable[[Path, Path], object]:
    return lambda folder, ran: edit(folder / "config.json", lambda found: found.update(values))


def bare_pickle(folder: Path, ran: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"evil": Evil(ran)}, folder / "pytorch_model.bin")


ENCODERS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "pickle": (bare_pickle, "pickled weights are not read"),
    "pickle by another name": (lambda folder, ran: torch.save(Evil(ran), folder / "model.safetensors"), "header"),
    "pickle as a shard": (shards("evil.bin"), "names 'evil.bin'"),
    "shard elsewhere": (shards("../x.safetensors"), "names '../x.safetensors'"),
    "link": (lambda folder, ran: link(folder / "tokenizer.json", "/etc/passwd"), "leads out of its folder"),
    "large": (lambda folder, ran: grow(folder / "tokenizer.json"), "3,221,225,472 bytes"),
    "code": (setting(model_type="evil", auto_map={"AutoModel": "evil.Evil"}), "which is never run"),
    "kernel": (setting(_attn_implementation="kernels-community/x"), "could run code"),
    "other weights": (setting(transformers_weights="adapter_model.bin"), "could run code"),
    "many layers": (setting(num_hidden_layers=10**8), "num_hidden_layers"),
    "many words": (setting(vocab_size=10**10), "cannot be loaded"),
    "adapter": (lambda folder, ran: (folder / "adapter_config.json").write_text("{}"), "adapter of another model"),
}


@pytest.fixture
def own(tiny_encoder: Path, tmp_path: Path) -> Path:
    """An encoder that may be spoilt."""
    return Path(shutil.copytree(tiny_encoder, tmp_path / "encoder"))


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_folder_made_to_harm_is_refused(name: str, own: Path, ran: Path) -> None:
    spoil, match = ENCODERS[name]
    spoil(own, ran)
    refused(lambda: load_pretrained(str(own)), match)
    assert not ran.exists()


def test_code_of_a_tokenizer_is_not_run(own: Path, ran: Path) -> None:
    (own / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Evil: pass\n")
    auto = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    edit(own / "tokenizer_config.json", lambda found: found.update(auto))
    assert load_pretrained(str(own)).tokenizer.encode("fur").ids and not ran.exists()


def cache(folder: Path, name: str, place: Path) -> Path:
    """A folder as the hub's cache has it: files are links to blobs. Returns the snapshot."""
    home = place / f"models--me--{name}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    (home / "blobs").mkdir()
    for file in [file for file in folder.rglob("*") if file.is_file()]:
        target = home / "snapshots" / COMMIT / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, home / "blobs" / sha256(file))
        target.symlink_to(os.path.relpath(home / "blobs" / sha256(file), target.parent))
    return home / "snapshots" / COMMIT


def test_the_links_of_the_hubs_cache_are_followed(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"cache_dir": tmp_path, "local_files_only": True}
    snapshot = cache(MODELS / "0.1.0" / "hill", "model", tmp_path)
    assert (snapshot / "encoder" / "config.json").is_symlink()
    wanted = HillClassifier.load(MODELS / "0.1.0" / "hill").predict_proba(["leaf fur"])
    assert np.array_equal(HillClassifier.from_pretrained("me/model", **options).predict_proba(["leaf fur"]), wanted)
    (own / "1_Pooling").mkdir()
    (own / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    cache(own, "encoder", tmp_path)
    monkeypatch.setattr(pretrained, "snapshot_download", partial(snapshot_download, **options))
    assert load_pretrained("me/encoder").pooling == "mean"
    link(snapshot / "taxonomy.json", "../../../../../etc/passwd")
    refused(lambda: HillClassifier.from_pretrained("me/model", **options), "leads out of its folder")


def test_an_encoder_of_the_hub_is_fetched_without_code(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(pretrained, "snapshot_download", lambda name, **options: asked.update(options) or str(own))
    load_pretrained("me/encoder")
    assert asked == {"allow_patterns": ["*.json", "*.txt", "*.model", "model*.safetensors"]}


def test_a_folder_may_itself_be_a_link(model: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(model)
    assert HillClassifier.load(tmp_path / "latest").predict(["leaf"])


def test_a_card_is_made_of_files_of_its_folder(model: Path) -> None:
    link(model / "metrics.json", "/etc/passwd")
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        read_facts(model)


def test_parts_are_written_below_the_folder_of_the_output(tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    for name in ("/bulk/good.jsonl", "/bulk/../../evil.jsonl", "/bulk/a/../../../evil.jsonl", "/bulk/.hidden.jsonl"):
        system.store[name] = system.store.get("/bulk/good.jsonl") or _memory_file(system, '{"text": "x"}\n')
    try:
        parts = find_parts("memory://bulk", Cut(), tmp_path)
        assert [part.name for part in parts] == ["good.jsonl.parquet"]
    finally:
        system.store.clear()


def _memory_file(system: Any, content: str) -> Any:
    system.pipe("/made", content.encode())
    return system.store.pop("/made")


PATHS = (
    "/static/../app.py", "/static/../../config.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py",
    "/static/%252e%252e/app.py", "/static/..\\app.py", "/static/..%5capp.py", "/static//etc/passwd",
    "/static/%2fetc%2fpasswd", "/static/./../app.py", "/static/", "/static/\0", "/static/" + "../" * 12 + "etc/passwd",
)  # fmt: skip


def app_of(config: ServeConfig | None = None, key: str = "") -> Any:
    """A server of one model."""
    classifier = HillClassifier.load(MODELS / "0.1.0" / "linear", device="cpu")
    return make_app(ModelRegistry([(Path("a model"), classifier, None)]), config, key)


@pytest.fixture(scope="module")
def served() -> Any:
    return app_of(key="a key")


def ask(served: Any, path: str, key: str = "", hosts: Sequence[str] = ("localhost",)) -> tuple[int, bytes]:
    """What is answered to a path that no client has tidied up."""
    fields = [(b"x-api-key", key), *((b"host", host) for host in hosts)]
    sent: list[Any] = []
    waiting = [{"type": "http.request", "body": b"", "more_body": False}]
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path, "query_string": b"",
        "raw_path": path.encode(), "root_path": "", "server": ("x", 80),
        "headers": [(name, value.encode("latin-1")) for name, value in fields],
    }  # fmt: skip

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.sleep(SECONDS)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(served(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_the_page_is_served(served: Any) -> None:
    assert ask(served, "/static/app.js")[0] == 200


@pytest.mark.parametrize("path", PATHS)
def test_no_other_file_is_served(path: str, served: Any) -> None:
    status, body = ask(served, path)
    assert status in (404, 405) and b"import" not in body and b"root:" not in body


@pytest.mark.parametrize("path", ["/static/../v1/models", "/static/..%2fv1/models", "//v1/models", "/./v1/models"])
def test_no_way_around_the_key(path: str, served: Any) -> None:
    status, body = ask(served, path)
    assert status in (401, 404) and b"a model" not in body
    assert ask(served, "/v1/models")[0] == 401 and b"a model" in ask(served, "/v1/models", "a key")[1]


@pytest.mark.parametrize("name", ["..", "../../etc/passwd", "%2e%2e", "a model/../../x", "\0", "a" * 5000])
def test_names_in_addresses_are_looked_up_and_no_paths(name: str, served: Any) -> None:
    for path in (f"/v1/labels/{name}", f"/v1/projects/{name}"):
        status, body = ask(served, path, "a key")
        assert status == 404 and len(body) < 1000 and b"root:" not in body


LOCAL = (
    "localhost", "LocalHost:8000", "localhost.", "localhost.:8000", "localhost:", "127.0.0.1", "127.0.0.1:8000",
    "127.8.8.8", "[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]:8000",
)  # fmt: skip
ADDRESSES = ("192.0.2.1", "192.0.2.1:8000", "[2001:db8::1]", "[2001:DB8::1]:8000", "0.0.0.0:8000")
FOREIGN = (
    "evil.example", "EVIL.EXAMPLE:8000", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example",
    "localhost:80@evil.example", "evil.example:localhost", "localhost, evil.example", "localhost..",
    "[::1].evil.example", "[::1", "[]", "[]:80", "", ":8000", ".", "*", "\xff\x00", "a" * 5000,
)  # fmt: skip


def test_only_own_names_are_answered_without_a_key() -> None:
    """A page that makes its own name resolve to this server must not read from it (DNS rebinding)."""
    local = app_of()
    for host in LOCAL:
        assert ask(local, "/v1/models", hosts=[host])[0] == 200, host
    for hosts in (*([host] for host in (*FOREIGN, *ADDRESSES)), [], ["localhost", "evil.example"]):
        for path in ("/v1/models", "/", "/healthz", "/static/app.js"):
            status, body = ask(local, path, hosts=hosts)
            assert status == 421 and len(body) < 300 and b"a model" not in body, hosts
    said = json.loads(ask(local, "/", hosts=["evil.example"])[1])["detail"]
    assert said == "the Host header is 'evil.example', which is not a name of this server; --allow-host adds a name"


def test_names_that_are_allowed_are_answered_too() -> None:
    config = ServeConfig(allow_host=("Hill.Example", "[2001:db8::7]", "b.example:80"))
    for key in ("", "a key"):
        named = app_of(config, key)
        for host in (*LOCAL, "hill.example", "HILL.EXAMPLE.:8000", "[2001:DB8:0::7]:1", "b.example"):
            assert ask(named, "/v1/models", key, [host])[0] == 200, host
        for host in (*FOREIGN, *ADDRESSES, "www.hill.example", "hill.example.evil.example"):
            assert ask(named, "/v1/models", key, [host])[0] == 421, host
    every = app_of(ServeConfig(allow_host=("*",)))
    for hosts in (*([host] for host in (*LOCAL, *FOREIGN, *ADDRESSES)), []):
        assert ask(every, "/v1/models", hosts=hosts)[0] == 200


def test_a_key_or_an_address_is_enough_where_others_may_ask() -> None:
    """A foreign page has no key, and can rebind a name but no address."""
    for listens in ("127.0.0.1", "0.0.0.0"):
        keyed = app_of(ServeConfig(host=listens), "a key")
        for host in (*LOCAL, *FOREIGN, *ADDRESSES):
            assert [ask(keyed, "/v1/models", key, [host])[0] for key in ("a key", "")] == [200, 401]
    for listens in ("0.0.0.0", "::", "192.0.2.7"):
        public = app_of(ServeConfig(host=listens, public=True))
        for host in (*LOCAL, *ADDRESSES, "192.0.2.7:8000"):
            assert ask(public, "/v1/models", hosts=[host])[0] == 200, (listens, host)
        for host in FOREIGN:
            assert ask(public, "/v1/models", hosts=[host])[0] == 421, (listens, host)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/predict", "/", "/openapi.json", "/none"])
def test_no_page_of_another_origin_may_read_answers(path: str) -> None:
    """Without permission (CORS) browsers neither show an answer to another page nor send its JSON."""
    with TestClient(app_of(), base_url="http://localhost") as client:
        origin = {"Origin": "http://evil.example"}
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        answers = [client.get(path, headers=origin), client.options(path, headers=origin | asked)]
        body = '{"text": "leaf"}'
        answers.append(client.post("/v1/predict", content=body, headers=origin | {"Content-Type": "text/plain"}))
    assert not any(name.startswith("access-control") for answer in answers for name in answer.headers)
    assert answers[1].status_code >= 400 and answers[2].status_code == 422


class Tags(HTMLParser):
    """Fails at a tag or an attribute that no page of ours has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts, self.text = 0, ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED.split()
        self.scripts += tag == "script"
        for name, value in attrs:
            assert not name.startswith("on") and (name != "href" or str(value).startswith("#"))
            assert name != "src" or str(value).startswith("data:image/svg+xml;base64,")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def hostile() -> HillClassifier:
    """A model whose labels, names and descriptions look like HTML."""
    taxonomy = Taxonomy([Label(f"a{HOSTILE}", HOSTILE), Label(f"b{HOSTILE}", f"x{HOSTILE}", (f"a{HOSTILE}",), HOSTILE)])
    texts = [f"{word} {HOSTILE} {i}" for i in range(6) for word in ("alpha", "beta")]
    return HillClassifier(taxonomy, "linear", preset=None).fit(texts, [[f"a{HOSTILE}"], [f"b{HOSTILE}"]] * 6)


def pages(hostile: HillClassifier) -> dict[str, tuple[str, int]]:
    """Every page that is made of a model's labels and of texts, and how many scripts it has."""
    documents = label_documents([f"alpha {HOSTILE}"] * 3, [[f"b{HOSTILE}"]] * 3, hostile.taxonomy)
    lines = [[HOSTILE, HOSTILE]]
    return {
        "explanation": (hostile.explain(f"alpha {HOSTILE}", [f"b{HOSTILE}"]).html(), 0),
        "report": (make_report(hostile, documents, explain).html(), 1),
        "experiment": (html(HOSTILE, [HOSTILE], [Section(HOSTILE, HOSTILE, [HOSTILE, "x"], lines)], {}), 0),
    }


@pytest.mark.parametrize("name", ["explanation", "report", "experiment"])
def test_labels_and_texts_stay_text_in_pages(name: str, hostile: HillClassifier) -> None:
    page, scripts = pages(hostile)[name]
    found = Tags(page)
    assert found.scripts == scripts and (HOSTILE if name == "experiment" else f"alpha {HOSTILE}") in found.text
    assert "Content-Security-Policy" in page


def test_labels_stay_text_in_a_card_and_a_table(hostile: HillClassifier, tmp_path: Path) -> None:
    hostile.save(tmp_path / "model")
    card = make_card(read_facts(tmp_path / "model"))
    table = markdown(HOSTILE, [HOSTILE], [Section(HOSTILE, HOSTILE, [HOSTILE], [[HOSTILE]])])
    assert "<script" not in card and "<img" not in card and "\n---\n\n# Text" in card
    assert all("](javascript:" not in page.replace("\\]", "") for page in (card, table))
    assert "\\<script" in table and "|\n" in table
