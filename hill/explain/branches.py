"""What text and structure each add to the logits of HILL: its head is linear, so that the split is exact."""

import torch

from hill.explain.way import still
from hill.models import HILL, HTCModel
from hill.types import Batch, FloatArray, IntArray

Branches = dict[str, FloatArray]
"""What text, structure and bias, and names where they are read, add to the logit of each label (K); their sum is it."""


def split(model: HTCModel, batch: Batch, rows: IntArray) -> Branches | None:
    """The branches of a batch of one, or none where a model has no such head."""
    if not isinstance(model, HILL):
        return None
    with still(model), torch.no_grad():
        text = model.text.read(batch)  # (1, D)
        tree, units = model.encode(text)
        vectors = {"text": text, "structure": tree}
        labels = torch.from_numpy(rows)
        weight, bias = model.head.weight[labels], model.head.bias[labels]
        columns = _columns(model.config.classifier, model.text.width)
        found = {name: weight[:, columns[name]] @ vector[0, : len(columns[name])] for name, vector in vectors.items()}
        if model.head_leaves is not None and units is not None:
            found["structure"] = found["structure"] + model.head_leaves.weight[labels] @ units.flatten()
        if model.names is not None:
            found["names"] = model.names(text)[0, labels]
    return {name: values.double().cpu().numpy() for name, values in (found | {"bias": bias}).items()}


def _columns(classifier: str, width: int) -> dict[str, range]:
    """The columns of the head that read each branch."""
    none, first, second = range(0), range(width), range(width, 2 * width)
    match classifier:
        case "concat":
            return {"text": first, "structure": second}
        case "residual":
            return {"text": first, "structure": first}
        case "tree":
            return {"text": none, "structure": first}
    return {"text": first, "structure": none}
