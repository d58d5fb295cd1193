"""The linear model explained exactly: the logit is the bias and, for each n-gram, its weight times its TF-IDF value."""

import numpy as np
import torch
from tokenizers import Tokenizer

from hill.explain.gradients import Attribution
from hill.models import Linear
from hill.types import Batch, FloatArray, IntArray


@torch.no_grad()
def weigh(model: Linear, batch: Batch, rows: IntArray) -> tuple[Attribution, IntArray, FloatArray]:
    """What tokens and n-grams add to each label, n-grams as their keys (G) with values (K, G).

    An n-gram's value is shared equally between its occurrences, and between the tokens of a pair. The baseline is a
    text without n-grams: its logit is the bias.
    """
    bag, labels = model.text, torch.from_numpy(rows)
    keys = bag.ngrams(batch.ids, batch.mask)[0]  # (M): all tokens, then all pairs
    place = torch.searchsorted(bag.keys, keys).clamp(max=bag.width - 1)
    known = bag.keys[place] == keys
    features, occurrence, times = torch.unique(place[known], return_inverse=True, return_counts=True)
    value = bag(batch.ids, batch.mask)[0, features].double()  # (G)
    added = model.weights_of(features, labels).T.double() * value  # (K, G)
    each = added.new_zeros(len(rows), len(keys))
    each[:, known] = (added / times)[:, occurrence]
    tokens = _to_tokens(each.cpu().numpy(), batch.ids.shape[1])
    bias = model.bias[labels].double().cpu().numpy()
    found = Attribution(tokens, bias + added.sum(dim=1).cpu().numpy(), bias, np.ones(len(rows), dtype=np.int64))
    return found, bag.keys[features].cpu().numpy(), added.cpu().numpy()


def _to_tokens(each: FloatArray, count: int) -> FloatArray:
    """Values of all tokens and then all pairs, to values of tokens: (K, M) to (K, T)."""
    tokens, pairs = each[:, :count].copy(), each[:, count:]
    if pairs.shape[1]:
        tokens[:, :-1] += pairs / 2
        tokens[:, 1:] += pairs / 2
    return tokens


def name_ngrams(keys: IntArray, tokenizer: Tokenizer) -> list[str]:
    """The words of n-grams, from their keys."""
    size = tokenizer.get_vocab_size()
    pairs = [divmod(key, size) for key in keys.tolist()]
    return [" ".join(str(tokenizer.id_to_token(word)) for word in pair if word) for pair in pairs]
