"""What requests and answers look like: checked on the way in, and all of it in /openapi.json."""

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hill.decode import STRATEGIES
from hill.serve.answers import EXPLAINED

MOST_SCORES = 1000
Strategy = Literal["closure", "ancestors", "top-down", "path", "safe", "raw"]
assert set(get_args(Strategy)) == {*STRATEGIES} - {"auto"}


def _words(text: str) -> str:
    """The text, if it has words in it and characters that can be written down."""
    if not text.strip():
        raise ValueError("is empty; expected words")
    return _writable(text)


def _writable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has half a surrogate pair in it; expected Unicode text") from None
    return text


def _whole(value: Any) -> Any:
    """A whole number, however JSON wrote it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = Annotated[str, AfterValidator(_words), Field(json_schema_extra={"pattern": r"\S"})]
Name = Annotated[str, AfterValidator(_writable)]

ONE_OR_MANY: dict[str, Any] = {
    "oneOf": [
        {"required": ["text"], "properties": {"text": {"type": "string"}, "texts": {"type": "null"}}},
        {
            "required": ["texts"],
            "properties": {"texts": {"type": "array"}, "text": {"type": "null"}},
            "anyOf": [
                {"properties": {"explain": {"enum": [False, None]}}},
                {"properties": {"texts": {"maxItems": 1}}},
            ],
        },
    ],
    "examples": [
        {"text": "A deep network that translates sentences."},
        {"texts": ["A deep network.", "A galaxy survey."], "strategy": "closure", "threshold": 0.4, "top_k": 5},
    ],
}
"""What the fields of a request for predictions may be together."""


class Asked(BaseModel):
    """A request for predictions: one text, or several."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=ONE_OR_MANY)

    text: Text | None = None
    texts: Annotated[list[Text], Field(min_length=1, description="As many as the server allows.")] | None = None
    model: Name | None = Field(None, description="Name of a served model; the first is the default.")
    strategy: Strategy | None = Field(None, description="How scores become label sets; the model's own is the default.")
    threshold: float | None = Field(None, ge=0, le=1, description="One for all labels, in place of the model's own.")
    top_k: Annotated[int | None, BeforeValidator(_whole)] = Field(
        None, ge=1, le=MOST_SCORES, description="Also give this many of the highest scores."
    )
    explain: bool | Annotated[list[Name], Field(max_length=EXPLAINED)] | None = Field(
        None, description="Also tell which words speak for the predicted labels, or for these; of one text only."
    )

    @model_validator(mode="after")
    def _one_or_many(self) -> "Asked":
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        if self.explain not in (None, False) and len(self.all) > 1:
            raise ValueError(f"explain is for one text; there are {len(self.all)}")
        return self

    @property
    def all(self) -> list[str]:
        """The texts."""
        return self.texts or [self.text or ""]


class Problem(BaseModel):
    """Why a request failed."""

    detail: str = Field(examples=["give either text or texts"])


class Known(BaseModel):
    """A model in the list of models."""

    name: str
    labels: int
    levels: int
    default: bool


class Model(Known):
    """What there is to know of a model."""

    model: str = Field(examples=["hill"])
    encoder: str | None = Field(examples=["minilm"])
    strategies: list[str]
    strategy: str
    threshold: float
    thresholds_differ: bool = Field(description="Whether labels have thresholds of their own.")
    metrics: dict[str, Any]
    max_length: int
    explains: bool


class ScoredLabel(BaseModel):
    """A label and its score."""

    id: str
    name: str
    score: float


class PredictedLabel(ScoredLabel):
    """A predicted label; level 1 are the roots."""

    level: int


class Predicted(BaseModel):
    """What is predicted for one text."""

    labels: list[PredictedLabel]
    paths: list[list[str]]
    scores: list[ScoredLabel] = Field(default=[], description="With top_k.")
    explanation: dict[str, Any] = Field(default={}, description="With explain.")


class Answer(BaseModel):
    """The predictions of a request."""

    model: str
    strategy: str
    threshold: float
    predictions: list[Predicted]


class ShownLabel(BaseModel):
    """A label of the taxonomy."""

    id: str
    name: str
    description: str
    level: int
    children: int
    parents: list[str]


class WholeLabel(ShownLabel):
    """A label with its paths from the roots."""

    paths: list[list[str]]


class Listed(BaseModel):
    """Some of the labels below a label, or of those that were found."""

    parent: str | None
    total: int
    labels: list[ShownLabel]
