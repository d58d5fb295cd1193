"""Export to a stock transformers model: a folder that `AutoModelForSequenceClassification` loads, without this package.

A stock model puts a dense layer and an activation between the first token's state h and its classifier, where a flat
head has nothing. Its weights are set so that the two together are h again: where the activation is tanh, the layer
makes h so small that tanh changes none of its digits, and the classifier makes it as large again; where it is ReLU or
GELU, the layer shifts h to where that is the identity; DeBERTa's can be left out.
"""

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from hill.classifier import HillClassifier
from hill.errors import ConfigError, HillError
from hill.nn import Transformer
from hill.train.store import Stored

TOLERANCE = 1e-5
"""How far a score of the stock model may be from the model's."""
SMALL = 2.0**-14
"""tanh(x) is x to 7 digits for all |x| below 10 times this; a power of 2, so that scaling changes no digit."""
FAR = 8.0
"""From here on GELU is the identity in fp32."""


@dataclass(frozen=True)
class StockHead:
    """Where a stock model has its dense layer and its classifier, and which activation is between them."""

    dense: str
    out: str
    activation: str
    last_norm: str = ""
    """The norm that h comes from, which bounds it."""


ROBERTA = StockHead("classifier.dense", "classifier.out_proj", "tanh")
HEADS = {
    "bert": StockHead("bert.pooler.dense", "classifier", "tanh"),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "mpnet": ROBERTA,
    "electra": StockHead(
        "classifier.dense", "classifier.out_proj", "gelu", "electra.encoder.layer.-1.output.LayerNorm"
    ),
    "distilbert": StockHead(
        "pre_classifier", "classifier", "relu", "distilbert.transformer.layer.-1.output_layer_norm"
    ),
    "deberta-v2": StockHead("pooler.dense", "classifier", "linear"),
}


def export_transformers(classifier: HillClassifier, folder: str | os.PathLike[str]) -> None:
    """Write a trained classifier as a stock transformers model with its tokenizer and label ids.

    It gives the same scores, not the same decisions: thresholds and what makes label sets consistent stay here. What
    was written is loaded and compared first. A model that no stock one can hold is a `ConfigError` that says why.
    """
    folder, stored = Path(folder), classifier.stored
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' exists and is not empty; choose another folder for the export")
    check_stock(stored)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        draft = Path(scratch) / "draft"
        stock_model(stored).save_pretrained(draft)
        _tokenizer(stored, classifier.max_length).save_pretrained(draft)
        _compare(stored, draft)
        if folder.exists():
            folder.rmdir()
        draft.rename(folder)


def check_stock(stored: Stored) -> None:
    """Raise unless a stock model gives the scores of this one."""
    model, text = stored.model, stored.model.text
    if not isinstance(text, Transformer):
        raise ConfigError(f"model '{stored.name}' reads texts with a {type(text).__name__}; expected a transformer")
    if stored.name not in ("flat", "hgclr") and getattr(model.config, "classifier", "") != "text":
        raise ConfigError(
            f"the classifier of model '{stored.name}' reads more than the text's vector, which no stock model does; "
            "export with --onnx, or train with --model flat, or hill with model.classifier=text"
        )
    if model.config.loss != "bce":
        raise ConfigError(
            f"model.loss is '{model.config.loss}', but a stock model scores each label for itself; export with --onnx, "
            "or train with model.loss=bce"
        )
    kind = _kind(text)
    if text.pooling != "cls":
        raise ConfigError(
            f"the text's vector is the mean over its tokens, but the stock model of type '{kind}' classifies the first "
            "token's state; export with --onnx, or train with model.pooling=cls"
        )
    if kind not in HEADS:
        raise ConfigError(f"an encoder of type '{kind}' has no known stock head; expected one of {', '.join(HEADS)}")


@torch.no_grad()
def stock_model(stored: Stored) -> Any:
    """The stock model with the scores of this one."""
    text: Any = stored.model.text
    where = HEADS[_kind(text)]
    config = _config(stored, where)
    start: Callable[..., Any] = transformers.AutoModelForSequenceClassification.from_config
    stock = start(config).float().eval()
    stock.base_model.load_state_dict(_weights(text.encoder), strict=False)
    dense, out, head = (
        stock.get_submodule(where.dense),
        stock.get_submodule(where.out),
        stored.model.get_submodule("head"),
    )
    scale = SMALL if where.activation == "tanh" else 1.0
    shift = _bound(stock, where) + FAR if where.last_norm else torch.zeros(text.width)
    weight, bias = (getattr(head, name).detach().float().cpu() for name in ("weight", "bias"))
    dense.weight.copy_(scale * torch.eye(text.width))
    dense.bias.copy_(shift)
    out.weight.copy_(weight / scale)
    out.bias.copy_((bias.double() - weight.double() @ shift.double()).float())
    return stock


def _config(stored: Stored, where: StockHead) -> Any:
    text: Any = stored.model.text
    config = copy.deepcopy(text.encoder.config)
    config.id2label = dict(enumerate(stored.taxonomy.ids))
    config.label2id = {label: row for row, label in enumerate(stored.taxonomy.ids)}
    config.problem_type = "multi_label_classification"
    if where.activation == "linear":
        config.pooler_hidden_act, config.pooler_hidden_size = "linear", config.hidden_size
    return config


def _weights(encoder: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().float().cpu() for name, weight in encoder.state_dict().items()}


def _bound(stock: nn.Module, where: StockHead) -> Tensor:
    """The most that any state can be in each feature, after the norm that it comes from: (D)."""
    layers, _, norm = where.last_norm.partition(".-1.")
    last: Any = list(stock.get_submodule(layers).children())[-1].get_submodule(norm)
    bound: Tensor = len(last.weight) ** 0.5 * last.weight.abs() + last.bias.abs()
    return bound


def _tokenizer(stored: Stored, longest: int) -> Any:
    known = stored.tokenizer.get_vocab()
    names = {"unk_token": ("[UNK]", "<unk>"), "cls_token": ("[CLS]", "<s>"), "sep_token": ("[SEP]", "</s>")}
    special = {role: name for role, choices in names.items() for name in choices if name in known}
    special["pad_token"] = str(stored.tokenizer.id_to_token(stored.model.text.pad))
    make: Callable[..., Any] = transformers.PreTrainedTokenizerFast
    return make(
        tokenizer_object=stored.tokenizer,
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )


@torch.inference_mode()
def _compare(stored: Stored, folder: Path) -> None:
    """Raise unless what was written gives the model's scores, padding included."""
    load: Callable[..., Any] = transformers.AutoModelForSequenceClassification.from_pretrained
    stock, text = load(folder).eval(), copy.deepcopy(stored.model.text).float().cpu().eval()
    length = min(16, text.longest)
    ids = torch.randint(stored.tokenizer.get_vocab_size(), (8, length), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(length) < length - torch.arange(8)[:, None] % length).long()
    head = copy.deepcopy(stored.model.get_submodule("head")).float().cpu().eval()
    wanted, found = head(text(ids, mask)).sigmoid(), stock(input_ids=ids, attention_mask=mask).logits.sigmoid()
    apart = (wanted - found).abs().max().item()
    if not apart <= TOLERANCE:
        raise HillError(f"model '{stored.name}' cannot be exported: scores of the stock model are {apart:.1g} off")


def _kind(text: Transformer) -> str:
    config: Any = text.encoder.config
    return str(config.model_type)
