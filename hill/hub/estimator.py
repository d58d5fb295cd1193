"""Estimator: what scikit-learn expects of a classifier, which it needs not to be installed for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from hill.errors import ConfigError
from hill.extras import need
from hill.hub.kept import Kept
from hill.hub.labels import make_documents, make_indicator
from hill.settings import Groups, document
from hill.taxonomy.cells import join_tables
from hill.types import IntArray


class Estimator(Kept):
    """A classifier of texts with scikit-learn's parameters, tags and scores.

    Parameters are kept as they were given; all that follows from them is worked out, and checked, when some of it is
    first used.
    """

    GROUPS: ClassVar[tuple[str, ...]]
    """Groups of settings."""
    DERIVED: ClassVar[tuple[str, ...]]
    """Attributes that follow from the parameters, and what is learned after that."""
    _given: dict[str, Any]
    _matrix: bool = False
    """Whether labels were given as a matrix, and predictions are one."""

    @abstractmethod
    def _derive(self) -> None:
        """Set every attribute of `DERIVED` from the parameters."""

    @staticmethod
    @abstractmethod
    def _configs(model: Any, settings: Groups | None) -> Sequence[Any]:
        """The checked settings of each group."""

    @abstractmethod
    def __sklearn_is_fitted__(self) -> bool: ...

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            if name not in self.DERIVED:
                raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")
            self._derive()
            return self.__dict__[name]

    def _forget(self) -> None:
        """Let everything follow from the parameters anew."""
        for name in self.DERIVED:
            self.__dict__.pop(name, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters as they were given; if deep, every setting too, such as `train__epochs`."""
        if not deep:
            return dict(self._given)
        configs = zip(self.GROUPS, self._configs(self._given["model"], self._given["settings"]), strict=True)
        every = {f"{group}__{key}": value for group, config in configs for key, value in document(config).items()}
        return self._given | every

    def set_params(self, **params: Any) -> Self:
        """Change parameters, or settings such as `train__epochs=3`, for the next `fit`; till then it stays as it is."""
        given = self._given | {name: value for name, value in params.items() if "__" not in name}
        if unknown := sorted(given.keys() - self._given.keys()):
            raise ConfigError(f"unknown parameter '{unknown[0]}'; expected {', '.join(self._given)}, or group__setting")
        if nested := {name: value for name, value in params.items() if "__" in name}:
            given["settings"] = _merged(given["settings"], nested)
            self._configs(given["model"], given["settings"])  # an unknown setting fails before a search has begun
        self._given = given
        if not self.__sklearn_is_fitted__():
            self._forget()
        return self

    def __sklearn_tags__(self) -> Any:
        tags = need("sklearn.utils", "sklearn", "a scikit-learn estimator")
        return tags.Tags(
            estimator_type="classifier",
            target_tags=tags.TargetTags(required=True, one_d_labels=True, two_d_labels=True),
            classifier_tags=tags.ClassifierTags(multi_label=True),
            input_tags=tags.InputTags(one_d_array=True, two_d_array=False, string=True),
        )

    @property
    def classes_(self) -> npt.NDArray[np.str_]:
        """The label ids (L), in the order of every matrix; known after `fit`."""
        if not self.__sklearn_is_fitted__():
            raise AttributeError("classes_ is known after fit")
        return np.array(self.taxonomy.ids)

    def indicator(self, labels: Iterable[str | Iterable[str]]) -> IntArray:
        """Label sets (ids, names or paths) as scikit-learn wants them: 0 and 1 (documents, L), ancestors included."""
        return make_indicator(labels, self.taxonomy)

    def score(self, texts: Sequence[str], labels: Any) -> float:
        """Micro F1 of the predictions, labels in any form that `fit` takes."""
        return float(self.evaluate(make_documents(texts, labels, self.taxonomy))["micro_f1"])

    def predict(self, texts: Sequence[str]) -> Any:
        """The label ids of each text, ancestors included; after `fit` with a matrix, 0 and 1 (texts, L).

        The matrix is sparse where `predict_proba` is.
        """
        if not self._matrix:
            return super().predict(texts)
        decoder = self.decoder()
        chosen = ((documents, decoder.decode(scores)) for documents, scores in self.scores(texts))
        return join_tables(chosen, (len(texts), len(self.taxonomy))).astype(np.int64)


def _merged(settings: Groups | None, nested: dict[str, Any]) -> Groups:
    """These settings with others such as `train__epochs`; nothing that was given is changed in place."""
    groups = {group: dict(values) for group, values in (settings or {}).items()}
    for name, value in nested.items():
        group, key = name.split("__", 1)
        groups.setdefault(group, {})[key] = value
    return groups
