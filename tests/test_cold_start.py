"""Cold start: scores by definition, scales, and a folder that works like that of a trained model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from hill import ConfigError, HillClassifier, Label, Taxonomy, TaxonomyError, write_taxonomy
from hill.cold_start import COSINE_SPREAD, HUB_WEIGHT, SHARPNESS, WORDS_WEIGHT, check_names, cold_start
from hill.models.hill import FULL_RANK
from hill.revision import apply_taxonomy
from hill.train.warm_start import warm_settings
from tests.command import hill
from tests.conftest import toy_documents

LABELS = [
    Label("m", "fur milk"),
    Label("mo", "paw tail", ("m",), "bone and whiskers"),
    Label("mb", "cave echo", ("m",)),
    Label("f", "wing feather"),
    Label("fo", "nest egg", ("f",), "beak"),
]
TEXTS = toy_documents(60, 0)[0]


@pytest.fixture(scope="module")
def taxonomy() -> Taxonomy:
    return Taxonomy(LABELS)


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder with larger word vectors, so that texts differ, and the mean over tokens."""
    folder = tmp_path_factory.mktemp("cold") / "encoder"
    shutil.copytree(tiny_encoder, folder)
    model = transformers.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.mul_(50)
    model.save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


@pytest.fixture(scope="module")
def started(taxonomy: Taxonomy, encoder: Path) -> HillClassifier:
    return cold_start(taxonomy, TEXTS, str(encoder))


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def mean_pooled(folder: Path, texts: list[str]) -> np.ndarray:
    """The mean state of the tokens of each text, of length 1, by Hugging Face alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0).numpy() for text in texts
        ]
    return unit(np.stack(rows))


def with_children(vectors: np.ndarray) -> np.ndarray:
    """A parent is the sum of its own direction and that of its children's sum."""
    whole = unit(vectors)
    for parent, children in ((0, [1, 2]), (3, [4])):
        whole[parent] = unit((whole[parent] + unit(whole[children].sum(axis=0)[None])[0])[None])[0]
    return whole


def test_scores_are_those_of_the_definition(started: HillClassifier, encoder: Path) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    described = [f"{label.name} {label.description}".strip() for label in LABELS]
    options = {"ngram_range": (1, 2), "sublinear_tf": True, "token_pattern": r"\w+"}
    ngrams = text.TfidfVectorizer(**options).fit(described).vocabulary_
    tfidf = text.TfidfVectorizer(vocabulary=ngrams, **options).fit(described + TEXTS)
    words = tfidf.transform(TEXTS).toarray() @ with_children(tfidf.transform(described).toarray()).T
    cosines = mean_pooled(encoder, TEXTS) @ with_children(mean_pooled(encoder, described)).T
    scores = started.score_matrix(TEXTS)
    for rows in ([0, 3], [1, 2, 4]):  # the two levels
        logits = SHARPNESS * cosines[:, rows] / cosines[:, rows].std()
        logits += WORDS_WEIGHT * SHARPNESS * words[:, rows] / words[:, rows].std()
        bias = np.log(scores[:, rows] / (1 - scores[:, rows])) - logits
        assert np.ptp(bias, axis=0).max() < 0.02  # the same for all texts
        even = minimize(lambda b, z=logits: logsumexp(z + b, axis=1).mean() - b.mean(), np.zeros(len(rows))).x
        expected = HUB_WEIGHT * (even - even.mean())  # with `even`, labels have equal shares of the texts
        assert bias.mean(axis=0) - bias.mean() == pytest.approx(expected, abs=0.01)
        assert scores[:, rows].sum(axis=1).mean() == pytest.approx(1, abs=1e-3)


def test_the_encoder_alone_is_calibrated_too(started: HillClassifier, taxonomy: Taxonomy) -> None:
    alone = HillClassifier(taxonomy, "hill", started.settings(), preset=None)
    alone.set_stored(started.stored)
    assert [alone.score_matrix(TEXTS)[:, rows].sum(axis=1).mean() for rows in taxonomy.levels] == pytest.approx(
        [1, 1], abs=1e-3
    )


def test_without_texts_the_scales_are_typical_values(taxonomy: Taxonomy, tiny_encoder: Path) -> None:
    classifier = cold_start(taxonomy, encoder=str(tiny_encoder))
    model = classifier.stored.model
    assert model.names.weight.tolist() == pytest.approx([SHARPNESS / COSINE_SPREAD] * 5, rel=0.02)
    draws = np.random.default_rng(0).normal(0.15, COSINE_SPREAD, 100_000)
    logits = model.names.weight[0].item() * (draws - 0.25) + model.head.bias[0].item()
    assert 2 * expit(logits).mean() == pytest.approx(1, abs=0.02)  # two labels on the first level
    assert len(classifier.predict_paths(["paw tail"])[0][0]) == 2


def test_words_of_a_name_decide(started: HillClassifier) -> None:
    assert started.members[0].score_matrix(["nest egg"]).argmax() == 4
    assert started.members[0].score_matrix(["nothing known"]).max() == 0.5


def test_the_folder_is_that_of_a_normal_model(
    started: HillClassifier, taxonomy: Taxonomy, encoder: Path, tmp_path: Path
) -> None:
    write_taxonomy(taxonomy, tmp_path / "taxonomy.json")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    arguments = [tmp_path / "taxonomy.json", "--out", tmp_path / "model", "--encoder", encoder]
    made = hill("start", *arguments, "--texts", tmp_path / "texts.jsonl")
    assert made.returncode == 0 and "no labelled document was used" in made.stdout, made.stderr
    assert "5 labels, 2 with a description; 60 unlabelled texts" in made.stdout
    loaded = HillClassifier.load(tmp_path / "model")
    assert np.allclose(loaded.score_matrix(TEXTS), started.score_matrix(TEXTS), atol=1e-5)
    assert loaded.predict(["cave echo echo"]) == started.predict(["cave echo echo"])
    assert loaded.explain("nest egg").labels
    card = hill("card", tmp_path / "model").stdout
    assert (
        "No labelled document was used: only the names and descriptions of the labels, and 60 unlabelled texts" in card
    )
    assert "had no training documents" not in card and "has not been evaluated" in card
    again = hill("start", *arguments)
    assert again.returncode == 2 and "choose another --out" in again.stderr


def test_a_training_starts_from_it(started: HillClassifier, taxonomy: Taxonomy, tmp_path: Path) -> None:
    started.save(tmp_path / "start")
    short = {"train": {"steps": 1, "ensemble": False, "lr": 0.0, "encoder_lr": 0.0, "classifier_lr": 0.0}}
    name, settings = warm_settings(tmp_path / "start", short)
    trained = HillClassifier(taxonomy, name, settings)
    trained.fit(["paw tail", "nest egg", "cave echo"] * 3, ["mo", "fo", "mb"] * 3)
    report = trained.warm_start_report
    assert report is not None and len(report.copied) == 5 and not report.fresh_weights
    assert trained.stored.model.names.weight.tolist() == started.stored.model.names.weight.tolist()
    assert not trained.members  # as --no-ensemble asks


def test_a_training_from_it_keeps_the_model_of_words(
    started: HillClassifier, taxonomy: Taxonomy, tmp_path: Path
) -> None:
    started.save(tmp_path / "start")
    name, settings = warm_settings(tmp_path / "start", {"train": {"steps": 1}})
    trained = HillClassifier(taxonomy, name, settings)
    trained.fit(["paw tail", "nest egg", "cave echo"] * 3, ["mo", "fo", "mb"] * 3, out=tmp_path / "run")
    trained.save(tmp_path / "run")
    loaded = HillClassifier.load(tmp_path / "run")
    assert len(loaded.members) == 2 and loaded.explain("nest egg").labels
    words = started.members[0].score_matrix(TEXTS)
    assert np.allclose(loaded.members[1].score_matrix(TEXTS), words)


def test_with_very_few_documents_the_result_is_close_to_the_start(
    started: HillClassifier, taxonomy: Taxonomy, tmp_path: Path
) -> None:
    """One dev document says nothing about the weights of the models: they are those of the start."""
    started.save(tmp_path / "start")
    unchanged = {"steps": 1, "lr": 0.0, "encoder_lr": 0.0, "classifier_lr": 0.0, "precision": "fp32"}
    trained = HillClassifier(taxonomy, *warm_settings(tmp_path / "start", {"train": unchanged}))
    trained.fit(["paw tail", "nest egg", "cave echo"] * 3, ["mo", "fo", "mb"] * 3)
    assert len(trained.members) == 2 and trained.decode_config.strategy == "path"
    assert trained.score_matrix(TEXTS) == pytest.approx(started.score_matrix(TEXTS), abs=1e-3)
    assert trained.predict(TEXTS) == started.predict(TEXTS)


def test_an_export_keeps_the_model_of_words(started: HillClassifier, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from hill.export import OnnxClassifier
    from hill.export.onnx import export_onnx

    export_onnx(started, tmp_path / "onnx", int8=False)
    exported = OnnxClassifier.load(tmp_path / "onnx")
    assert exported.score_matrix(TEXTS) == pytest.approx(started.score_matrix(TEXTS), abs=1e-3)
    assert exported.predict(TEXTS) == started.predict(TEXTS)


def test_a_new_taxonomy_needs_a_new_start(started: HillClassifier, taxonomy: Taxonomy) -> None:
    with pytest.raises(ConfigError, match="made by hill start; make it again with the new taxonomy"):
        apply_taxonomy(started, taxonomy)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([Label("A00", "A00"), Label("A1.2", "A1.2")], TaxonomyError, "2 of 2 labels have no name in words, .* 'A00'"),
        ([Label(str(i), f"some name {i}") for i in range(FULL_RANK + 1)], ConfigError, "5,001 labels; .* up to 5,000"),
    ],
)
def test_taxonomies_that_cannot_be_used(labels: list[Label], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_names(Taxonomy(labels))


def test_codes_with_descriptions_and_few_codes_are_fine() -> None:
    check_names(Taxonomy([Label("A00", "A00", (), "cholera"), Label("A01", "A01"), Label("x", "typhoid")]))


def test_names_in_any_script_and_long_codes_are_read() -> None:
    """The names of other scripts counted as codes, and a code of 30 digits before a word took hours."""
    check_names(Taxonomy([Label("1", "数学"), Label("2", "Физика"), Label("3", "علوم"), Label("4", "Öl und Gas")]))
    check_names(Taxonomy([Label("1", "1" * 900 + " words"), Label("2", "-" * 900 + "ab-cd words")]))


def test_texts_in_an_unknown_language_are_a_warning(taxonomy: Taxonomy, tiny_encoder: Path, tmp_path: Path) -> None:
    write_taxonomy(taxonomy, tmp_path / "taxonomy.json")
    (tmp_path / "texts.jsonl").write_text('{"text": "eine Katze mit weichem Fell"}\n')
    options = ["--texts", tmp_path / "texts.jsonl", "--out", tmp_path / "model", "--encoder", tiny_encoder]
    made = hill("start", tmp_path / "taxonomy.json", *options)
    assert made.returncode == 0
    assert "hill: texts have words that the encoder does not know (100%)" in made.stderr and "--encoder" in made.stderr
    assert "names of labels" not in made.stderr
