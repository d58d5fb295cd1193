"""Presets: which settings they choose, how a training is fitted into a time limit, and the ensemble they train."""

import copy
import dataclasses
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from hill.classifier import GROUPS, BackgroundFit, HillClassifier, mean_f1
from hill.data import read_data
from hill.data.documents import label_documents
from hill.decode import DecodeConfig, Mixture
from hill.errors import CheckpointError, ConfigError
from hill.explain import explain
from hill.io import save_folder
from hill.models.hill import HILLConfig
from hill.presets import PRESETS, WARM_RATE, Facts, choose, describe, fit_to_time
from hill.research.rows import PUBLISHED
from hill.settings import Groups, read_settings
from hill.taxonomy import Label, Taxonomy, write_taxonomy
from hill.train.distributed import DistributedContext
from hill.train.timing import Speed
from hill.train.trainer import Notice, StageProgress, Step
from tests.command import hill
from tests.conftest import animals_taxonomy, toy_documents

WOS = Facts(5_468, 141, 1.0, 200.0, has_names=True, label_texts=141, layers=6, width=384, device="cuda")
FIELDS = {"loss", "classifier", "contrast", "name_weight", "leaf_units", "height"}


def chosen(facts: Facts, given: Groups | None = None, preset: str = "auto") -> Groups:
    return choose(preset, facts, FIELDS, given or {}).settings


def test_the_facts_of_documents() -> None:
    taxonomy = animals_taxonomy()
    documents = label_documents(["one two", "three", "four five six"], [["bat"], ["p", "fo"], ["m"]], taxonomy)
    facts = describe(documents, taxonomy, (2, 16), "cpu")
    assert facts == Facts(3, 7, pytest.approx(4 / 3), 2.0, True, 7, 2, 16, "cpu")
    for names, has_names, texts in ((("X1", "Y"), False, 0), (("Food", "Tools"), True, 2), (("X1", "Tools"), False, 1)):
        bare = Taxonomy([Label(name, name) for name in names])  # names that are also the ids, as in many files
        facts = describe(label_documents(["a"], [[names[0]]], bare), bare, (2, 16), "cpu")
        assert facts.has_names == has_names and facts.label_texts == texts


def test_the_loss_follows_the_paths_per_document() -> None:
    assert chosen(WOS)["model"]["loss"] == "zlpr"
    assert chosen(replace(WOS, paths=1.7))["model"]["loss"] == "bce"
    assert chosen(replace(WOS, labels=98_505))["model"]["loss"] == "bce"  # zlpr needs all labels in each step


def test_a_training_that_continues_reads_its_documents_once_with_low_rates() -> None:
    once, new = (chosen(replace(WOS, documents=640, label_texts=0, continued=each))["train"] for each in (True, False))
    assert (once["steps"], once["evaluations"]) == (640 // once["batch_size"], 1) and new["steps"] > once["steps"]
    assert all(once[name] == WARM_RATE * new[name] for name in ("encoder_lr", "lr", "classifier_lr"))


def test_rates_are_low_from_a_cold_start_with_few_documents_per_label() -> None:
    few, more = 2 * WOS.labels, 2 * WOS.labels + 1
    new, started, many = (
        chosen(replace(WOS, documents=documents, started=each))["train"]["encoder_lr"]
        for documents, each in ((few, False), (few, True), (more, True))
    )
    assert new == many and started == WARM_RATE * new


def test_what_has_weights_per_label_is_left_out_with_many_labels() -> None:
    many = chosen(replace(WOS, labels=98_505, paths=3.0))["model"]
    assert many["name_weight"] == 0 and many["leaf_units"] == 0
    assert chosen(replace(WOS, paths=3.0))["model"]["leaf_units"] == 128
    assert chosen(replace(WOS, has_names=False))["model"]["name_weight"] == 0


def test_names_and_descriptions_of_labels_are_training_documents() -> None:
    assert chosen(WOS)["data"]["descriptions"] and chosen(replace(WOS, layers=0))["data"]["descriptions"]
    assert not chosen(replace(WOS, has_names=False))["data"]["descriptions"]
    assert not chosen(replace(WOS, labels=98_505))["data"]["descriptions"]
    for layers in (0, 6):
        assert not chosen(replace(WOS, layers=layers), preset="paper")["data"].get("descriptions")
    few, many = replace(WOS, documents=500), replace(WOS, documents=500, label_texts=8_000)
    assert chosen(many)["train"]["steps"] > chosen(few)["train"]["steps"]  # they count as documents
    sentence = "names and descriptions of labels as 141 more documents"
    assert sentence in choose("auto", WOS, FIELDS, {}).reasons[0]
    assert sentence not in choose("auto", WOS, FIELDS, {"data": {"descriptions": False}}).reasons[0]


def test_very_many_labels_start_from_centroids() -> None:
    train = chosen(replace(WOS, documents=98_505, labels=98_505))["train"]
    assert train["head_start"] == "on" and chosen(WOS)["train"]["head_start"] == "off"
    assert train["batch_size"] * train["steps"] == pytest.approx(2 * 98_505, rel=0.01)


def test_a_cpu_has_a_time_limit_and_fast_a_shorter_one() -> None:
    limits = {name: chosen(replace(WOS, device="cpu"), preset=name)["train"]["minutes"] for name in ("auto", "fast")}
    assert limits == {"auto": 30, "fast": 15}
    assert chosen(WOS)["train"]["minutes"] == chosen(WOS, preset="fast")["train"]["minutes"] == 0


def test_batches_are_small_on_a_cpu_where_the_encoder_is_trained() -> None:
    few = replace(WOS, documents=500)
    cpu, gpu = ([replace(each, device=device) for each in (WOS, few)] for device in ("cpu", "cuda"))
    sizes = [chosen(facts)["train"]["batch_size"] for facts in (*cpu, *gpu)]
    assert sizes == [16, 16, 64, 32]
    assert chosen(cpu[0], preset="fast")["train"]["batch_size"] == 64
    read = [chosen(facts)["train"]["batch_size"] * chosen(facts)["train"]["steps"] for facts in (cpu[0], gpu[0])]
    assert read[0] == read[1]


def test_another_batch_size_reads_as_many_documents() -> None:
    own = chosen(WOS)["train"]
    for size in (8, 64, 100):
        steps = chosen(WOS, {"train": {"batch_size": size}})["train"]["steps"]
        assert steps * size == pytest.approx(own["steps"] * own["batch_size"], abs=size)
    assert chosen(WOS, {"train": {"batch_size": 10**9}})["train"]["steps"] == 1
    assert "steps" not in chosen(WOS, {"train": {"batch_size": 8}}, preset="paper")["train"]


def test_rates_follow_the_width_of_the_encoder() -> None:
    rates = [chosen(replace(WOS, width=width))["train"]["encoder_lr"] for width in (384, 768, 1024)]
    assert rates == [2e-4, 5e-5, 2e-5]


def test_steps_grow_with_documents_and_labels_up_to_twenty_epochs() -> None:
    def steps(documents: int, labels: int) -> int:
        train = chosen(replace(WOS, documents=documents, labels=labels, label_texts=0))["train"]
        return int(train["steps"] * train["batch_size"])

    assert steps(100_000, 141) > steps(10_000, 141) and steps(10_000, 900) > steps(10_000, 141)
    assert steps(1_000, 900) == 312 * 64  # 20 epochs are 312.5 steps
    assert steps(24, 4) == 100 * 64


def test_a_cpu_gets_a_time_limit_unless_the_length_is_given() -> None:
    cpu = replace(WOS, device="cpu")
    assert chosen(cpu)["train"]["minutes"] == 30 and chosen(WOS)["train"]["minutes"] == 0
    for given in ({"steps": 7}, {"epochs": 3}):
        train = chosen(cpu, {"train": given})["train"]
        assert "minutes" not in train and ("steps" in train) == ("steps" in given)


def test_the_preset_paper_is_the_released_code() -> None:
    settings = chosen(WOS, preset="paper")
    assert settings["train"]["encoder_lr"] == 3e-5 and settings["train"]["warmup"] == 2000
    assert settings["train"]["precision"] == "fp32" and not settings["train"]["ensemble"]
    assert settings["decode"] == {"strategy": "raw", "threshold": 0.5, "tune": "off", "calibrate": "off"}
    assert settings["model"] == {
        "height": 3,
        "contrast": 0.001,
        "classifier": "concat",
        "loss": "bce",
        "name_weight": 0.0,
        "leaf_units": 0,
    }


def test_settings_that_a_model_lacks_are_left_out_and_models_on_words_need_none() -> None:
    assert chosen(WOS)["model"].keys() <= FIELDS
    assert choose("auto", WOS, {"loss"}, {}).settings["model"] == {"loss": "zlpr"}
    assert choose("auto", replace(WOS, layers=0), FIELDS, {}).settings == {"data": {"descriptions": True}}
    assert choose("none", WOS, FIELDS, {}).settings == {}


@pytest.mark.parametrize(
    ("preset", "train", "message"),
    [
        ("best", {}, "unknown preset 'best'; expected auto, paper, fast, none"),
        ("auto", {"minutes": 0}, "train.minutes is 0; expected more than 0"),
        ("auto", {"minutes": 5, "steps": 100}, "train.steps is 100"),
        ("auto", {"minutes": 5, "epochs": 3}, "train.epochs is 3"),
        ("paper", {"minutes": 5}, "without a time limit"),
        ("fast", {"freeze": 2}, "train.freeze is 2"),
    ],
)
def test_contradictions_are_one_sentence(preset: str, train: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(preset, WOS, FIELDS, {"train": train})


def test_every_preset_is_described() -> None:
    for preset in PRESETS.keys() - {"none"}:
        (first, *_) = choose(preset, WOS, FIELDS, {}).reasons
        assert first.startswith(f"preset {preset}: 5,468 documents, 141 labels, one path each → ")


# Time limits

SETTINGS: Groups = {
    "train": {"batch_size": 10, "accumulate": 1, "steps": 1_000, "epochs": 1, "freeze": 0, "head_start": "off"},
    "data": {"max_length": 512},
}
LENGTHS = np.full(50, 100)


SPEED = Speed(0.01, 0.002, 0.002, 0.0001)


def planned(seconds: float, speed: Speed = SPEED, settings: Groups = SETTINGS, **changes: Any) -> Any:
    arguments = {"layers": 6, "documents": 5_000, "dev": 100, "test": 0, "seconds": seconds} | changes
    return fit_to_time(settings, speed, LENGTHS, **arguments)


def duration(plan: Any, speed: Speed, documents: int, test: int) -> float:
    """The time that a plan takes at this speed."""
    train, data = plan.settings["train"], plan.settings["data"]
    kept = min(data["max_length"], 100) / 100
    scored = (data["max_dev"] or 100) + (data["max_test"] or test)
    if train["freeze"] >= 6:
        return kept * (speed.predict * scored + speed.encode * documents) + 10 * train["steps"] * speed.head
    return kept * (speed.predict * scored + 10 * train["steps"] * speed.train * (18 - 2 * train["freeze"]) / 18)


def test_with_enough_time_nothing_is_given_up() -> None:
    plan = planned(300)
    assert plan.settings["train"] == {"steps": 1_000, "freeze": 0, "evaluations": 1}
    assert plan.settings["data"] == {"max_length": 512, "max_dev": 0, "max_test": 0}
    assert plan.reason == "to end in time: all 1,000 steps, 512 tokens"


def test_with_less_time_there_are_fewer_steps_then_the_encoder_is_frozen() -> None:
    plans = [planned(seconds).settings["train"] for seconds in (80, 40, 20)]
    assert [plan["freeze"] for plan in plans] == sorted(plan["freeze"] for plan in plans)
    assert plans[0]["steps"] < 1_000 and plans[0]["freeze"] == 0
    slow = Speed(1.0, 0.0005, 0.0005, 0.0001)
    assert planned(20, slow).settings["train"] == {"steps": 1_000, "freeze": 6, "evaluations": 1}


@pytest.mark.parametrize("seconds", [10, 20, 60, 150])
@pytest.mark.parametrize("test", [0, 1_000])
def test_plans_end_in_time(seconds: float, test: int) -> None:
    plan = planned(seconds, test=test)
    assert duration(plan, SPEED, 5_000, test) <= 0.9 * seconds
    scored = plan.settings["data"]["max_test"] or test
    assert plan.reserved >= 0.002 * scored * plan.settings["data"]["max_length"] / 512


def test_scoring_very_many_labels_does_not_take_the_time_of_training() -> None:
    """Scores take much longer than vectors; then samples of dev and test are scored, and nothing is refused."""
    plan = planned(300, Speed(0.01, 0.5, 0.002, 0.0001), dev=3_000, test=9_000)
    data = plan.settings["data"]
    assert 50 <= data["max_dev"] < 100 and 50 <= data["max_test"] < 100 and plan.settings["train"]["steps"] == 1_000
    assert plan.reason.endswith("60 of 3,000 dev documents, 60 of 9,000 test documents")


def test_a_head_start_takes_time_too() -> None:
    on = {**SETTINGS, "train": {**SETTINGS["train"], "head_start": "on"}}
    steps = [planned(60, settings=each).settings["train"]["steps"] for each in (SETTINGS, on)]
    assert steps[0] - steps[1] == pytest.approx(0.002 * 5_000 / (10 * 0.01), abs=2)  # reading documents, in steps


def test_a_frozen_encoder_reads_every_training_document_in_time() -> None:
    slow = Speed(1.0, 0.002, 0.002, 0.0001)
    plan = planned(8, slow)  # 5,000 documents take 10 seconds, and 6.4 with 64 of their 100 tokens
    assert plan.settings["train"]["freeze"] == 6 and plan.settings["data"]["max_length"] == 64
    assert duration(plan, slow, 5_000, 0) <= 0.9 * 8


def test_a_limit_that_is_too_short_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="allow more minutes"):
        planned(0.05)


# Trainings


@pytest.fixture(scope="module")
def settings(tiny_encoder: Path) -> Groups:
    return {
        "model": {"encoder": str(tiny_encoder)},
        "train": {"steps": 40, "encoder_lr": 5e-3, "lr": 5e-3},
        "data": {"max_length": 16},
    }


@pytest.fixture(scope="module")
def mixed(settings: Groups) -> HillClassifier:
    return HillClassifier(animals_taxonomy(), settings=settings).fit(*toy_documents(120, 1))


def test_fit_trains_an_ensemble_by_default(mixed: HillClassifier) -> None:
    assert [member.name for member in mixed.members] == ["linear"] and mixed.mixture is not None
    assert mixed.settings()["model"]["loss"] == "zlpr" and mixed.settings()["train"]["steps"] == 40
    texts, labels = toy_documents(60, 9)
    assert mixed.score(texts, labels) > 0.9
    (notice, *_) = mixed.training_record["preset"]["notices"]
    assert "120" not in notice and "108 documents, 7 labels" in notice  # a tenth is dev


def test_scores_of_an_ensemble_are_the_mixture_of_its_members(mixed: HillClassifier) -> None:
    texts = toy_documents(30, 4)[0]
    mixture, members = mixed.mixture, mixed.members
    assert mixture is not None
    alone = HillClassifier(mixed.taxonomy, preset=None)
    alone.set_stored(mixed.stored)
    expected = mixture([alone.score_matrix(texts), members[0].score_matrix(texts)])
    assert mixed.score_matrix(texts) == pytest.approx(expected, abs=1e-6)


def test_a_saved_ensemble_is_the_same_and_a_damaged_one_is_refused(mixed: HillClassifier, tmp_path: Path) -> None:
    texts = toy_documents(10, 4)[0]
    mixed.save(tmp_path / "model")
    again = HillClassifier.load(tmp_path / "model")
    assert (again.score_matrix(texts) == mixed.score_matrix(texts)).all()
    assert again.predict(texts) == mixed.predict(texts)
    listed = json.loads((tmp_path / "model" / "files.json").read_text())
    assert {"ensemble.json", "member-1/model.safetensors", "member-1/config.json"} <= listed.keys()
    (tmp_path / "model" / "files.json").unlink()  # without checksums, as a model of an unknown source
    ensemble = tmp_path / "model" / "ensemble.json"
    document = json.loads(ensemble.read_text())
    ensemble.write_text(json.dumps(document | {"members": ["../model"]}))
    with pytest.raises(CheckpointError, match="expected member-1"):
        HillClassifier.load(tmp_path / "model")
    ensemble.write_text(json.dumps(document | {"mixture": {"weights": [[-1.0] * 3] * 2, "bias": [0.0] * 3}}))
    with pytest.raises(CheckpointError, match=r"the number -1.0; expected 0"):
        HillClassifier.load(tmp_path / "model")


def test_explanations_of_an_ensemble_add_up(mixed: HillClassifier) -> None:
    text = "cave echo unknown paw milk"
    other = copy.copy(mixed)
    other.mixture = Mixture(mixed.taxonomy, np.array([[0.4, 0.5, 0.6], [1.0, 0.9, 1.1]]), np.array([0.3, -0.2, 0.5]))
    explanation = explain(other, text, ["bat", "mo"], steps=64)
    (_, scores), *_ = other.scores([text])
    for label in explanation.labels:
        score = float(scores[0, other.taxonomy.row(label.id)])
        assert label.logit == pytest.approx(np.log(score / (1 - score)), abs=1e-3)
        assert sum((label.branches or {}).values()) == pytest.approx(label.logit, abs=1e-4)
        assert label.branches and {"text", "linear", "bias"} <= label.branches.keys()
        assert label.baseline + sum(label.values) + label.gap == pytest.approx(label.logit, abs=1e-9)
        assert abs(label.gap) < 0.1
    assert [word.text for word in explanation.words] == text.split()
    assert explanation.model == "hill + linear"


def test_an_ensemble_can_be_left_out(settings: Groups) -> None:
    given = settings | {"train": settings["train"] | {"ensemble": False, "steps": 2}}
    classifier = HillClassifier(animals_taxonomy(), settings=given).fit(*toy_documents(40, 1))
    assert classifier.mixture is None and not classifier.members


def test_dev_decides_whether_the_linear_model_is_mixed_in(settings: Groups) -> None:
    taxonomy, rng = animals_taxonomy(), np.random.default_rng(0)
    given = settings | {"train": settings["train"] | {"ensemble": False, "steps": 1}}
    classifier = HillClassifier(taxonomy, settings=given).fit(*toy_documents(40, 1))
    dev = label_documents(*toy_documents(300, 5), taxonomy)
    gold = dev.labels.toarray()
    good = np.clip(gold + rng.normal(0, 0.4, gold.shape), 0.01, 0.99).astype(np.float32)
    noise = rng.uniform(0.01, 0.99, gold.shape).astype(np.float32)

    def mixed_with(own: Any, other: Any, count: int) -> HillClassifier:
        tuned = copy.copy(classifier)
        tuned.decode_config = DecodeConfig()
        tuned._mix_if_better([classifier], [own[:count], other[:count]], dev.labels[:count])
        return tuned

    def best_f1(scores: Any) -> float:
        tuned = mixed_with(scores, scores, 300)
        return mean_f1(tuned.metrics)

    helped = mixed_with(noise, good, 300)
    assert helped.mixture is not None and "left out" not in helped.decode_note
    assert mean_f1(helped.metrics) > best_f1(noise)
    flipped = np.where(rng.random(gold.shape) < 0.05, 1 - good, good)  # a member whose logits cannot help
    alone = mixed_with(gold * 0.9 + 0.05, flipped.astype(np.float32), 300)
    assert mean_f1(alone.metrics) == 1.0
    spoiled = mixed_with(good, noise, 300)
    assert spoiled.mixture is None and not spoiled.members and "left out" in spoiled.decode_note
    assert mean_f1(spoiled.metrics) >= best_f1(good) - 1e-9  # never worse on dev than alone
    assert mixed_with(good, noise, 150).mixture is not None  # too few documents to decide


def test_trained_models_become_an_ensemble(mixed: HillClassifier, settings: Groups, tmp_path: Path) -> None:
    taxonomy = mixed.taxonomy
    mixed.save(tmp_path / "a")
    flat: Groups = {"model": settings["model"], "train": {"epochs": 1}, "data": {"max_length": 16}}
    HillClassifier(taxonomy, "flat", flat, preset=None).fit(*toy_documents(40, 3)).save(tmp_path / "b")
    write_taxonomy(taxonomy, tmp_path / "taxonomy.tsv")
    records = [{"text": text, "labels": labels} for text, labels in zip(*toy_documents(60, 6), strict=True)]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    done = hill(
        "ensemble",
        *(str(tmp_path / name) for name in "ab"),
        "--data",
        str(tmp_path / "new.jsonl"),
        "--out",
        str(tmp_path / "m"),
    )
    assert done.returncode == 0, done.stderr
    assert "weights of hill per level" in done.stdout and "weights of flat per level" in done.stdout
    both, texts = HillClassifier.load(tmp_path / "m"), toy_documents(20, 8)[0]
    assert [member.name for member in both.members] == ["linear", "flat"] and both.mixture is not None
    own = HillClassifier.load(tmp_path / "a")
    own.mixture = None
    parts = [own, own.members[0], HillClassifier.load(tmp_path / "b")]
    expected = both.mixture([part.score_matrix(texts) for part in parts])
    assert both.score_matrix(texts) == pytest.approx(expected, abs=1e-6)
    assert both.evaluation_documents(label_documents(*toy_documents(60, 6), taxonomy))[1]  # they were seen
    explanation = explain(both, texts[0], steps=64)
    assert explanation.model == "hill + linear + flat" and abs(explanation.labels[0].gap) < 0.2
    with pytest.raises(ConfigError, match="at least 2 models, not 1"):
        HillClassifier.ensemble([tmp_path / "a"], label_documents(*toy_documents(9, 6), taxonomy))
    other = Taxonomy([Label("x", "x")])
    HillClassifier(other, "flat", flat, preset=None).fit(["a b", "b c"], [["x"], ["x"]]).save(tmp_path / "c")
    with pytest.raises(ConfigError, match="another taxonomy"):
        HillClassifier.ensemble([tmp_path / "a", tmp_path / "c"], label_documents(*toy_documents(9, 6), taxonomy))


def test_a_linear_model_that_takes_too_long_is_left_out(settings: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hill.classifier.TIMED_SECONDS", 0.0)
    classifier = HillClassifier(animals_taxonomy(), settings=settings)
    train = label_documents(*toy_documents(40, 1), classifier.taxonomy)
    in_background = BackgroundFit(classifier._fit_member(train, 0.0))
    assert in_background.wait() is None
    (notice,) = in_background.notices
    assert notice.text == "the linear model would take 0 minutes; it is left out"
    assert BackgroundFit(classifier._fit_member(train, 600.0)).wait() is not None


def test_an_export_has_the_linear_model(mixed: HillClassifier, tmp_path: Path) -> None:
    from hill.export import OnnxClassifier
    from hill.export.onnx import export_onnx

    export_onnx(mixed, tmp_path / "onnx", int8=False)
    exported, texts = OnnxClassifier.load(tmp_path / "onnx"), toy_documents(300, 2)[0]
    assert exported.thresholds_document() == mixed.thresholds_document()
    assert exported.score_matrix(texts) == pytest.approx(mixed.score_matrix(texts), abs=1e-4)
    assert exported.members[0].score_matrix(texts) == pytest.approx(mixed.members[0].score_matrix(texts), abs=1e-5)
    assert exported.predict(texts) == mixed.predict(texts)
    for name, damaged in (("words.json", "{}"), ("weights.safetensors", "x")):
        shutil.copytree(tmp_path / "onnx", tmp_path / name)
        (tmp_path / name / "member-1" / name).write_text(damaged)
        with pytest.raises(CheckpointError, match=f"member-1/{name}' is damaged"):
            OnnxClassifier.load(tmp_path / name)
    weights = safetensors.numpy.load_file(tmp_path / "onnx" / "member-1" / "weights.safetensors")
    safetensors.numpy.save_file(weights | {"bias": weights["bias"][1:]}, tmp_path / "wrong")
    with save_folder(tmp_path / "onnx") as draft:  # with a correct checksum
        shutil.copytree(
            tmp_path / "onnx", draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".hill*", "files.json")
        )
        shutil.copy(tmp_path / "wrong", draft / "member-1" / "weights.safetensors")
    with pytest.raises(CheckpointError, match="member-1' has 6 labels; expected 7"):
        OnnxClassifier.load(tmp_path / "onnx")


def test_an_export_without_its_members_has_the_decoding_of_the_model_alone(
    mixed: HillClassifier, tmp_path: Path
) -> None:
    from hill.export import OnnxClassifier
    from hill.export.onnx import export_onnx

    relative = copy.copy(mixed)
    relative.members = (copy.deepcopy(mixed.members[0]),)
    member = relative.members[0].stored.model
    member.config = replace(member.config, loss="softmax")  # whose scores depend on all labels
    export_onnx(relative, tmp_path / "onnx", int8=False)
    exported = OnnxClassifier.load(tmp_path / "onnx")
    assert not exported.members and exported.thresholds_document() == mixed.own_decoding
    alone = HillClassifier(mixed.taxonomy, preset=None)
    alone.set_stored(mixed.stored)
    texts = toy_documents(8, 2)[0]
    assert exported.score_matrix(texts) == pytest.approx(alone.score_matrix(texts), abs=1e-4)


def test_a_frozen_encoder_is_read_once_and_predicts_as_it_was_trained(
    settings: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hill.train.head_start.MIN_CACHED", 1)
    monkeypatch.setenv("HILL_CACHE", str(tmp_path / "cache"))
    taxonomy = animals_taxonomy()
    texts, labels = toy_documents(60, 1)
    data = {"train": label_documents(texts, labels, taxonomy), "dev": label_documents(*toy_documents(20, 2), taxonomy)}

    def trained(out: str) -> HillClassifier:
        classifier = HillClassifier(taxonomy, settings=settings, preset="fast")
        events = list(classifier.training(data, tmp_path / out))
        encoded = [event.done for event in events if isinstance(event, StageProgress) and event.stage == "encoding"]
        assert encoded[-1] == 60 + 20 + len(taxonomy) and sum(isinstance(event, Step) for event in events) == 40
        return classifier

    first = trained("first")
    assert len(list((tmp_path / "cache" / "vectors").glob("*.safetensors"))) == 2
    second = trained("second")
    (_, a), *_ = first.scores(texts[:1])
    (_, b), *_ = second.scores(texts[:1])
    assert (a == b).all()
    metrics = first.evaluate(data["dev"], include_seen=True)  # from texts; training measured it from vectors
    assert metrics["micro_f1"] == pytest.approx(first.metrics["micro_f1"], abs=1e-6)
    before = HillClassifier(taxonomy, settings=settings, preset=None)._start(data["train"]).model.text.state_dict()
    after = first.stored.model.text.state_dict()
    assert all((before[name] == after[name]).all() for name in before)  # nothing of the encoder was trained


def test_a_training_ends_within_its_time(settings: Groups, tmp_path: Path) -> None:
    given = {**settings, "train": {"minutes": 0.1, "encoder_lr": 5e-3}}
    taxonomy = animals_taxonomy()
    data = {name: label_documents(*toy_documents(size, 1), taxonomy) for name, size in (("train", 400), ("dev", 50))}
    classifier, start = HillClassifier(taxonomy, settings=given), time.monotonic()
    events = list(classifier.training(data, tmp_path))
    assert time.monotonic() - start < 12  # 6 seconds, and patience with a busy machine
    assert any(isinstance(event, Notice) and event.text.startswith("to end in time: ") for event in events)


def test_learning_rates_fall_with_the_time_if_it_runs_out(settings: Groups, tmp_path: Path) -> None:
    given = {**settings, "train": {"minutes": 0.05, "encoder_lr": 5e-3, "warmup": 0.0}}
    taxonomy = animals_taxonomy()
    data = {name: label_documents(*toy_documents(size, 1), taxonomy) for name, size in (("train", 400), ("dev", 50))}
    rates = []
    for event in HillClassifier(taxonomy, settings=given).training(data, tmp_path):
        if isinstance(event, Step):
            rates.append(event.rate)
            time.sleep(0.05)  # slower than was measured
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.2 * rates[0]


def test_a_resumed_training_keeps_what_was_chosen(settings: Groups, tmp_path: Path) -> None:
    given = {**settings, "train": {"minutes": 0.2, "encoder_lr": 5e-3, "checkpoint_seconds": 0.0}}
    taxonomy = animals_taxonomy()
    data = {name: label_documents(*toy_documents(size, 1), taxonomy) for name, size in (("train", 200), ("dev", 50))}
    classifier = HillClassifier(taxonomy, settings=given)
    for event in classifier.training(data, tmp_path):
        if isinstance(event, Step) and event.step == 3:
            break
    steps = classifier.settings()["train"]["steps"]
    again = HillClassifier(taxonomy, settings=given)
    for _ in again.training(data, tmp_path, resume=True):
        pass
    assert again.settings()["train"]["steps"] == steps and again.mixture is not None


def test_the_command_prints_what_it_chose_and_why(settings: Groups, tmp_path: Path) -> None:
    taxonomy = animals_taxonomy()
    write_taxonomy(taxonomy, tmp_path / "taxonomy.tsv")
    records = [{"text": text, "labels": labels} for text, labels in zip(*toy_documents(60, 1), strict=True)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read_data(tmp_path / "data.jsonl", taxonomy)
    common = ["train", str(tmp_path / "data.jsonl"), "--taxonomy", str(tmp_path / "taxonomy.tsv")]
    common += ["--encoder", settings["model"]["encoder"], "--out"]
    done = hill(*common, str(tmp_path / "model"), "--set", "train.steps=3", "--no-ensemble")
    assert done.returncode == 0 and "preset auto: " in done.stderr and "tree and contrast are off" in done.stderr
    for arguments, message in (
        (["--preset", "best"], "unknown preset 'best'; expected auto, paper, fast, none"),
        (["--minutes", "0"], "train.minutes is 0"),
        (["--minutes", "3", "--set", "train.epochs=2"], "train.epochs is 2"),
    ):
        refused = hill(*common, str(tmp_path / "other"), *arguments)
        assert refused.returncode == 2 and message in refused.stderr and not (tmp_path / "other").exists()


def test_the_rows_of_the_papers_data_sets_are_the_preset_with_their_own_values() -> None:
    own = {"batch_size", "lr", "height", "contrast", "readout", "encoder", "hidden", "name"}
    fields = {field.name for field in dataclasses.fields(HILLConfig)}
    preset = choose("paper", WOS, fields, {}).settings
    for data in ("wos", "rcv1", "nyt"):
        row = read_settings(PUBLISHED / data / "hill.toml", [], GROUPS)
        for group, values in row.items():
            for name, value in values.items():
                assert name in own or preset[group][name] == value, (data, group, name)
            if data == "wos":
                assert {name: value for name, value in values.items() if name in own & preset[group].keys()} == {
                    name: preset[group][name] for name in own & preset[group].keys()
                }


def test_several_ranks_have_no_time_limit(settings: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hill.classifier.current_context", lambda: DistributedContext(world_size=2))
    documents = label_documents(*toy_documents(30, 1), animals_taxonomy())
    given = {**settings, "train": {}}
    classifier = HillClassifier(animals_taxonomy(), settings=given)
    classifier._choose(documents, torch.device("cpu"), None)
    assert classifier.train_config.minutes == 0 and classifier.train_config.steps == 200
    given["train"] = {"minutes": 5.0}
    with pytest.raises(ConfigError, match="a time limit needs a single process"):
        HillClassifier(animals_taxonomy(), settings=given)._choose(documents, torch.device("cpu"), None)


def test_a_part_that_the_user_turns_on_is_not_called_off() -> None:
    def said(model: dict[str, Any]) -> str:
        return " ".join(choose("auto", WOS, FIELDS, {"model": model}).reasons)

    assert "contrast are off" in said({}) and "contrast are off" not in said({"classifier": "concat"})
