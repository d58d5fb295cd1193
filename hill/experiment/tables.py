"""The tables: which rows each has, under which titles, and how a row differs from the one it is derived from."""

from dataclasses import dataclass, field

from hill.settings import Groups


@dataclass(frozen=True)
class Difference:
    """A row that has no file of its own: the row it is derived from, its model, and what is set differently."""

    base: str | None
    model: str
    settings: Groups = field(default_factory=dict)


HEIGHTS = range(1, 7)
TREES = ("paper", "authors", "refined", "random", "taxonomy")
RCNN: Groups = {"model": {"text": "rcnn"}}
TWO_STAGES: Groups = {"train": {"stages": "two", "contrast_epochs": 1, "head_start": "off"}}
TIMED: Groups = {
    "train": {
        "batch_size": 16,
        "epochs": 20,
        "patience": 20,
        "encoder_lr": 3e-5,
        "lr": 3e-5,
        "classifier_lr": 0.0,
        "warmup": 0.0,
        "schedule": "constant",
        "head_start": "off",
        "checkpoint_seconds": 1e9,
    }
}
"""The released code's protocol: batch 16, 20 epochs, one rate of 3e-5 for all weights, no warm-up; nothing is saved."""

PAPER: Groups = {"model": {"leaf_units": 0, "name_weight": 0.0, "contrast": 0.1, "negatives": "all"}}
"""HILL with nothing beyond the paper."""

DIFFERENCES: dict[str, Difference] = {
    "hill": Difference(None, "hill"),
    "linear": Difference("hill", "linear"),
    "flat": Difference("hill", "flat"),
    "flat-conditional": Difference("flat", "flat", {"model": {"loss": "conditional-softmax", "adjust": 1.0}}),
    "hgclr": Difference("flat", "hgclr"),
    "hiagm": Difference("hill", "hiagm"),
    "htcinfomax": Difference("hill", "htcinfomax"),
    "himatch": Difference("hill", "himatch"),
    "hitin": Difference("hill", "hitin"),
    "textrcnn": Difference("hill", "textrcnn", {"train": {"lr": 1e-3, "batch_size": 64, "epochs": 30, "patience": 5}}),
    "hiagm-rcnn": Difference("textrcnn", "hiagm", RCNN),
    "htcinfomax-rcnn": Difference("textrcnn", "htcinfomax", RCNN),
    "himatch-rcnn": Difference("textrcnn", "himatch", RCNN),
    "hitin-rcnn": Difference("textrcnn", "hitin", RCNN),
    **{f"hill-{layer}": Difference("hill", "hill", {"model": {"structure": layer}}) for layer in ("gin", "gat", "gcn")},
    "hill-no-contrast": Difference("hill", "hill", {"model": {"contrast": 0.0}}),
    **{f"hill-height-{height}": Difference("hill", "hill", {"model": {"height": height}}) for height in HEIGHTS},
    **{f"hill-tree-{method}": Difference("hill", "hill", {"model": {"method": method}}) for method in TREES},
    "hill-rcnn": Difference("textrcnn", "hill", RCNN),
    "hill-two-stages": Difference("hill", "hill", TWO_STAGES),
    "hill-timed": Difference("hill", "hill", {**PAPER, **TIMED}),
    "hgclr-timed": Difference("hgclr", "hgclr", {"model": {"layers": 2}, **TIMED}),
}

TABLES: dict[str, dict[str, str]] = {
    "main-table": {
        "linear": "TF-IDF + linear SVM",
        "textrcnn": "TextRCNN",
        "hiagm-rcnn": "HiAGM",
        "htcinfomax-rcnn": "HTCInfoMax",
        "himatch-rcnn": "HiMatch",
        "flat": "BERT",
        "hiagm": "BERT+HiAGM",
        "htcinfomax": "BERT+HTCInfoMax",
        "himatch": "BERT+HiMatch",
        "hgclr": "HGCLR",
        "hitin": "BERT+HiTIN",
        "flat-conditional": "BERT, conditional softmax",
        "hill": "HILL",
    },
    "ablation": {
        "hill": "HILL",
        "hill-gin": "r.p. GIN",
        "hill-gat": "r.p. GAT",
        "hill-gcn": "r.p. GCN",
        "hill-no-contrast": "r.m. L_clr",
        "hill-height-1": "r.m. Algorithm 1",
    },
    "heights": {f"hill-height-{height}": f"K = {height}" for height in HEIGHTS},
    "trees": {f"hill-tree-{method}": f"{method} tree" for method in TREES},
    "questions": {
        "textrcnn": "TextRCNN",
        "hill-rcnn": "HILL on TextRCNN",
        "flat": "BERT",
        "hill-two-stages": "HILL, contrast first",
        "hill": "HILL",
    },
    "cost": {"hill-timed": "HILL", "hgclr-timed": "HGCLR"},
}
"""Titles as in the paper, where BERT stands for whatever encoder is used."""

REFERENCES = {"cost": "hill-timed"}
"""The row that the others are tested against, where it is not HILL itself."""
