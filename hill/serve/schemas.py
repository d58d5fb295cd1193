"""Request and response schemas of the API. FastAPI validates requests with them and shows them in /openapi.json."""

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hill.decode import STRATEGIES

MAX_EXPLAINED = 20
"""Maximum number of labels that one request explains; each takes about as long as predicting hundreds of texts."""
MAX_TOP_K = 1000

Strategy = Literal["closure", "ancestors", "top-down", "path", "safe", "raw"]
assert set(get_args(Strategy)) == {*STRATEGIES} - {"auto"}


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has a lone surrogate; expected valid Unicode text") from None
    return text


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; expected words")
    return _check_unicode(text)


def _integral_to_int(value: Any) -> Any:
    """Accept 3.0 for 3, because some JSON libraries write integers as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = Annotated[str, AfterValidator(_check_text), Field(json_schema_extra={"pattern": r"\S"})]
Name = Annotated[str, AfterValidator(_check_unicode)]

_PREDICT_REQUEST_SCHEMA: dict[str, Any] = {
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
"""JSON schema of the rules that combine several fields of `PredictRequest`."""


class PredictRequest(BaseModel):
    """A request for predictions: one text, or several."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_PREDICT_REQUEST_SCHEMA)

    text: Text | None = None
    texts: Annotated[list[Text], Field(min_length=1, description="Up to --max-texts texts.")] | None = None
    model: Name | None = Field(None, description="Name of a served model. Default: the first one.")
    strategy: Strategy | None = Field(None, description="How scores become label sets. Default: the model's strategy.")
    threshold: float | None = Field(
        None, ge=0, le=1, description="One threshold for all labels. Default: the model's thresholds."
    )
    top_k: Annotated[int | None, BeforeValidator(_integral_to_int)] = Field(
        None, ge=1, le=MAX_TOP_K, description="Also return the labels with the highest scores, this many."
    )
    explain: bool | Annotated[list[Name], Field(max_length=MAX_EXPLAINED)] | None = Field(
        None,
        description="Also return which words raise or lower the scores of the predicted labels (true), or of the "
        "labels with these ids. For one text only.",
    )

    @model_validator(mode="after")
    def _check_combination(self) -> "PredictRequest":
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        if self.explain not in (None, False) and len(self.all_texts) > 1:
            raise ValueError(f"explain is for one text; there are {len(self.all_texts)}")
        return self

    @property
    def all_texts(self) -> list[str]:
        """The texts as a list, also if there is only one."""
        return self.texts or [self.text or ""]


class ScoredLabel(BaseModel):
    """A label and its score."""

    id: str
    name: str
    score: float


class PredictedLabel(ScoredLabel):
    """A predicted label. Roots have level 1."""

    level: int


class TextPrediction(BaseModel):
    """The prediction for one text."""

    labels: list[PredictedLabel]
    paths: list[list[str]]
    scores: list[ScoredLabel] = Field(default=[], description="With top_k.")
    explanation: dict[str, Any] = Field(default={}, description="With explain.")


class PredictResponse(BaseModel):
    """The predictions of a request."""

    model: str
    strategy: str
    threshold: float
    predictions: list[TextPrediction]


class ModelSummary(BaseModel):
    """A model in the list of models."""

    name: str
    labels: int
    levels: int
    default: bool


class ModelDetails(ModelSummary):
    """A model with its settings and metrics."""

    model: str = Field(examples=["hill"])
    encoder: str | None = Field(examples=["minilm"])
    strategies: list[str]
    strategy: str
    threshold: float
    thresholds_differ: bool = Field(description="Whether thresholds are per label.")
    metrics: dict[str, Any]
    max_length: int
    explains: bool


class LabelSummary(BaseModel):
    """A label of the taxonomy."""

    id: str
    name: str
    description: str
    level: int
    children: int
    parents: list[str]


class LabelDetails(LabelSummary):
    """A label with its paths from the roots."""

    paths: list[list[str]]


class LabelList(BaseModel):
    """One page of the children of a label, or of search results."""

    parent: str | None
    total: int
    labels: list[LabelSummary]
