"""What the tools of others expect of a classifier: scikit-learn's protocol, a place on a model hub, a model card."""

from hill.hub.card import make_card
from hill.hub.estimator import Estimator
from hill.hub.facts import Facts, read_facts, training_facts

__all__ = ["Estimator", "Facts", "make_card", "read_facts", "training_facts"]
