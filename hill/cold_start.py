"""Cold start: a classifier from the names and descriptions of labels, without labelled documents.

The score of a label adds up two similarities between a document and the label's name and description: the cosine of
the vectors of the text encoder, and the cosine of their TF-IDF vectors. Unlabelled texts, if there are any, set the
scale of both and the weights of words. The result is a `hill` model with the vectors of names, and a `linear` model as
its member, so everything that works with a trained model works with it.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.sparse import csr_array
from scipy.special import ndtri, softmax
from tokenizers import Tokenizer

from hill.card import package_versions
from hill.classifier import HillClassifier
from hill.data import Documents
from hill.data.documents import check_texts
from hill.data.tokens import tokenize
from hill.decode import Mixture
from hill.decode.calibration import sigmoid
from hill.encoders.base import UNLIMITED
from hill.errors import ConfigError, TaxonomyError
from hill.models import MODELS
from hill.models.base import new_text_encoder
from hill.models.hill import FULL_RANK, NEUTRAL_COSINE
from hill.models.inference import Inference, SavedModel, find_device
from hill.settings import Groups
from hill.sparse import assemble_rows
from hill.taxonomy import Label, Taxonomy
from hill.types import FloatArray

NAME_TOKENS = 256
"""Tokens of a label's name and description that are encoded. 64 tokens cost 2 points on dev of attack."""
MAX_TEXTS = 2_000
"""Texts that are encoded to set scales; of more texts, a random sample is used."""
MAX_COUNTED = 50_000
"""Texts whose words are counted."""
SHARPNESS = 1.25
"""How much one standard deviation of the cosine adds to a logit."""
WORDS_WEIGHT = 0.25
"""Weight of a standard deviation of the TF-IDF similarity, relative to one of the cosine."""
HUB_WEIGHT, HUB_ROUNDS = 0.3, 50
"""Some labels are near all texts (hubs). This share of the bias that gives all labels the same share of the texts is
used: labels are not equally frequent. On dev, leaf accuracy rises by 1.1 points on wos and arxiv and 2.0 on ICD-10-CM
blocks, and falls by 1.0 on attack, whose labels are the least balanced."""
COSINE_MEAN, COSINE_SPREAD, WORDS_SPREAD = 0.15, 0.1, 0.05
"""Without texts: typical means and standard deviations of the similarities of a document and a label."""
MIN_SPREAD = 1e-3
MAX_PIECES, MAX_UNKNOWN = 1.75, 0.2
"""Tokens per word, and share of unknown tokens, above which texts may be in a language that the encoder does not know.
English abstracts have 1.2 tokens per word in `minilm`, diagnoses 1.6; French sentences have 1.8, German ones 2.8."""
SEED = 0


def cold_start(
    taxonomy: Taxonomy, texts: Sequence[str] = (), encoder: str = "minilm", device: str = "auto"
) -> HillClassifier:
    """Make a classifier from the names and descriptions of labels.

    It predicts one path per document. Its scores are calibrated so that on each level they add up to 1 on average.

    Args:
        taxonomy: the labels; at least half of them need a name or a description in words.
        texts: unlabelled texts like those that will be classified; they improve the scores and their calibration.
        encoder: the text encoder: minilm, mpnet, a folder, or a name on the model hub.
        device: the device of the encoder.
    """
    check_names(taxonomy)
    texts = check_texts(texts)
    order = np.random.default_rng(SEED).permutation(len(texts)).tolist()
    counted = [texts[i] for i in sorted(order[:MAX_COUNTED])]
    sample = [texts[i] for i in sorted(order[:MAX_TEXTS])]
    described = _descriptions(taxonomy)
    classifier = _encoder_model(taxonomy, described, encoder, device)
    member = _words_model(taxonomy, described, counted)
    _set_scales(classifier, member, sample)
    warnings = [
        f"{name} {problem}"
        for name, each in {"names of labels": described, "texts": sample}.items()
        if (problem := _language_problem(each, classifier.stored.tokenizer))
    ]
    record = {"texts": len(texts), "encoded": len(sample), "warnings": warnings}
    classifier.training_record = {"cold_start": record, "versions": package_versions()}
    return classifier


def check_names(taxonomy: Taxonomy) -> None:
    """Raise unless at least half of the labels have a name or a description in words."""
    if len(taxonomy) > FULL_RANK:
        raise ConfigError(f"the taxonomy has {len(taxonomy):,} labels; a cold start supports up to {FULL_RANK:,}")
    nameless = [label for label in taxonomy if not label.has_words]
    if 2 * len(nameless) > len(taxonomy):
        raise TaxonomyError(
            f"{len(nameless):,} of {len(taxonomy):,} labels have no name in words, such as '{nameless[0].name}'; a "
            "cold start reads names: add a column name or description to the taxonomy"
        )


def _descriptions(taxonomy: Taxonomy) -> list[str]:
    """The name and description of each label."""
    return [f"{label.name} {label.description}".strip() for label in taxonomy]


def _language_problem(texts: Sequence[str], tokenizer: Tokenizer) -> str:
    """What suggests that the encoder does not know the language of these texts, or an empty string."""
    words = sum(len(re.findall(r"\w+", text)) for text in texts)
    unknown = {tokenizer.token_to_id(name) for name in ("[UNK]", "<unk>")}
    tokens = [token for encoding in tokenizer.encode_batch(list(texts)) for token in _content(encoding)]
    pieces = sum(any(map(str.isalnum, token)) for _, token in tokens) / max(words, 1)
    share = sum(index in unknown for index, _ in tokens) / max(len(tokens), 1)
    remedy = "the encoder may not know their language: give one that does with --encoder"
    if share > MAX_UNKNOWN:
        return f"have words that the encoder does not know ({share:.0%}); {remedy}"
    return f"are split into {pieces:.1f} pieces per word; {remedy}" if pieces > MAX_PIECES else ""


def _content(encoding: Any) -> list[tuple[int, str]]:
    """The ids and tokens of an encoding, without special tokens."""
    return [
        (index, token)
        for index, token, special in zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, strict=True)
        if not special
    ]


# The two models


def _encoder_model(taxonomy: Taxonomy, described: Sequence[str], encoder: str, device: str) -> HillClassifier:
    """A `hill` model whose logits are cosines with the vectors of labels, before `_set_scales`."""
    settings: Groups = {
        # as the preset auto, so that a training can start from this model
        "model": {"encoder": encoder, "name_weight": 10.0, "classifier": "text", "contrast": 0.0, "loss": "zlpr"},
        "train": {"device": device},
        "decode": {"strategy": "path", "tune": "off", "calibrate": "off"},
    }
    classifier = _new_classifier("hill", taxonomy, settings, [])
    vectors = _with_children(taxonomy, csr_array(encode(classifier, described, NAME_TOKENS)))
    model: Any = classifier.stored.model
    with torch.no_grad():
        model.head.weight.zero_()
        model.names.vectors.copy_(torch.from_numpy(vectors.toarray()))
    return classifier


def _words_model(taxonomy: Taxonomy, described: Sequence[str], texts: Sequence[str]) -> HillClassifier:
    """A `linear` model whose logits are cosines with the TF-IDF vectors of labels, before `_set_scales`."""
    settings: Groups = {"model": {"characters": 0, "min_count": 1}, "train": {"device": "cpu"}}
    classifier = _new_classifier("linear", taxonomy, settings, described)  # other words have no weight
    model: Any = classifier.stored.model
    tokens, counted = (tokenize(each, classifier.stored.tokenizer, UNLIMITED) for each in (described, texts))
    model.count_more(counted)
    model.head.set(csr_array(_with_children(taxonomy, model.vectors(tokens)).T))
    return classifier


def _new_classifier(name: str, taxonomy: Taxonomy, settings: Groups, texts: Sequence[str]) -> HillClassifier:
    """A classifier with a new model that has learned from no label; only the words of the texts are counted."""
    classifier = HillClassifier(taxonomy, name, settings, preset=None)
    config, kind = classifier.model_config, MODELS[name]
    torch.manual_seed(SEED)
    text, tokenizer = new_text_encoder(config, texts)
    unlabelled: csr_array[Any] = csr_array((len(texts), len(taxonomy)), dtype=bool)
    documents = Documents([str(i) for i in range(len(texts))], list(texts), unlabelled, 0)
    model = kind(text, taxonomy, config, kind.prepare(documents, taxonomy, config, tokenizer))
    classifier.set_stored(SavedModel(name, model.eval(), taxonomy, tokenizer, classifier.settings()))
    classifier.metrics = {}
    return classifier


def encode(classifier: HillClassifier, texts: Sequence[str], max_length: int) -> FloatArray:
    """The vectors of texts (texts, D), of length 1."""
    model = classifier.stored.model
    tokens = tokenize(texts, classifier.stored.tokenizer, min(max_length, model.text.longest))
    inference = Inference(model, find_device(classifier.train_config.device))
    vectors: Any = assemble_rows(
        ((rows, part.cpu().numpy()) for rows, part in inference.vectors(tokens)), (len(texts), model.text.width)
    )
    unit: FloatArray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def encode_texts(texts: Sequence[str], encoder: str) -> FloatArray:
    """The vectors of texts (texts, D) by an encoder, of length 1."""
    settings: Groups = {"model": {"encoder": encoder}}
    classifier = _new_classifier("flat", Taxonomy([Label("-", "-")]), settings, [])
    return encode(classifier, texts, classifier.max_length)


def _with_children(taxonomy: Taxonomy, vectors: csr_array[Any]) -> csr_array[Any]:
    """Add to the vector of each label (L, D) that of its children's mean, from the leaves up; all of length 1."""
    size = len(taxonomy)
    child, parent = taxonomy.edge_array.T
    for level in reversed(taxonomy.levels):
        used = np.isin(parent, level)
        children: csr_array[Any] = csr_array((np.ones(used.sum()), (parent[used], child[used])), shape=(size, size))
        vectors = _normalised(csr_array(vectors + _normalised(children @ vectors)))
    return vectors


def _normalised(vectors: csr_array[Any]) -> csr_array[Any]:
    """Rows of length 1; empty rows stay empty."""
    lengths = np.sqrt(vectors.multiply(vectors).sum(axis=1))
    return csr_array(vectors.multiply(1 / np.maximum(lengths, 1e-12)[:, None]))


# Scales


def _set_scales(classifier: HillClassifier, member: HillClassifier, texts: Sequence[str]) -> None:
    """Scale the logits of both models, and mix them by adding them up.

    A standard deviation of the cosine over all texts and labels of a level adds `SHARPNESS` to the logit. The bias of
    each level is such that its scores add up to 1 on average over the texts; hubs get a lower bias. Without texts,
    cosines are assumed to have a normal distribution with typical values.
    """
    taxonomy = classifier.taxonomy
    model: Any = classifier.stored.model
    words: Any = member.stored.model
    if texts:
        cosines = encode(classifier, texts, classifier.max_length) @ model.names.vectors.detach().cpu().numpy().T
        matches = (words.vectors(tokenize(texts, member.stored.tokenizer, UNLIMITED)) @ words.head.matrix).toarray()
    else:
        normal = ndtri(np.linspace(0, 1, 1_001)[1:-1])[:, None]
        cosines = np.broadcast_to(COSINE_MEAN + COSINE_SPREAD * normal, (len(normal), len(taxonomy)))
        matches = np.zeros_like(cosines)
    slopes, biases, hubs = np.empty((2, len(taxonomy))), np.empty((2, len(taxonomy.levels))), np.empty(len(taxonomy))
    for k, rows in enumerate(taxonomy.levels):
        spread = max(float(matches[:, rows].std()), MIN_SPREAD) if texts else WORDS_SPREAD
        slopes[0, rows] = SHARPNESS / max(float(cosines[:, rows].std()), MIN_SPREAD)
        slopes[1, rows] = SHARPNESS * WORDS_WEIGHT / spread
        own = slopes[0, rows] * cosines[:, rows]
        both = own + slopes[1, rows] * matches[:, rows]
        hubs[rows] = HUB_WEIGHT * _uniform_bias(both) if texts else 0.0
        biases[:, k] = _fit_bias(own + hubs[rows]), _fit_bias(both + hubs[rows])
    with torch.no_grad():
        model.names.weight.copy_(torch.from_numpy(slopes[0]))
        model.head.bias.copy_(torch.from_numpy(biases[0][taxonomy.depth - 1] + hubs + NEUTRAL_COSINE * slopes[0]))
    words.head.set(csr_array(words.head.matrix.multiply(slopes[1])))
    classifier.own_decoding = classifier.thresholds_document()
    classifier.members = (member,)
    classifier.mixture = Mixture(taxonomy, np.ones((2, len(taxonomy.levels))), biases[1] - biases[0])


def _uniform_bias(logits: FloatArray) -> FloatArray:
    """Biases (labels) with which all labels have the same share of texts, by a softmax of logits (texts, labels)."""
    bias: FloatArray = np.zeros(logits.shape[1])
    for _ in range(HUB_ROUNDS):
        bias -= np.log(softmax(logits + bias, axis=1).mean(axis=0) * len(bias) + 1e-9)
    return bias


def _fit_bias(logits: FloatArray) -> float:
    """The bias with which the scores of logits (texts, labels) add up to 1 per text on average."""
    target = min(1.0, 0.9 * logits.shape[1])
    bound = float(np.abs(logits).max()) + 50
    return float(brentq(lambda bias: sigmoid(logits + bias).sum(axis=1).mean() - target, -bound, bound))
