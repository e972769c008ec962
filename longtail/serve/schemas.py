"""What clients send and get, as the OpenAPI description shows it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_LABELS = 1000  # of a document
Name = Annotated[str, Field(min_length=1, max_length=10_000)]
Names = Annotated[list[Name], Field(max_length=MOST_LABELS)]
Threshold = Annotated[float, Field(ge=0, le=1)] | Literal["auto", "auto-document"]
Value = Annotated[float, Field(allow_inf_nan=False)]
TEXT = "Brewing at home: which yeast for a dark beer?"


class Request(BaseModel):
    """A body whose fields are all known."""

    model_config = ConfigDict(extra="forbid")


class Row(Request):
    """A document as features."""

    indices: list[Annotated[int, Field(ge=0)]]
    values: list[Value]


class PredictRequest(Request):
    """One text, several texts, or feature rows."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": TEXT, "k": 3}, {"texts": [TEXT, "A sea trip"]}]}
    )

    text: str | None = Field(None, description="one document")
    texts: list[str] | None = Field(None, description="several documents")
    rows: list[Row] | None = Field(None, description="documents for a model of feature rows")
    k: int | None = Field(None, ge=1, le=MOST_LABELS, description="labels for each, at most; 5")
    threshold: Threshold | None = Field(
        None, description="the least probability of a label; auto is the best for F1"
    )
    language: str | None = Field(
        None, max_length=35, description="name labels so, by the model's vocabulary"
    )


class Label(BaseModel):
    """A label that was predicted."""

    id: int
    label: str
    score: float
    uri: str | None = Field(None, description="where the label has one")


class Document(BaseModel):
    """The labels of a document, best first."""

    labels: list[Label]


class Prediction(BaseModel):
    """The answer to predict; `version` is that of the model which answered."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "recipes",
                    "version": "5f2c9a0b77d1",
                    "documents": [{"labels": [{"id": 17, "label": "beer", "score": 0.93}]}],
                }
            ]
        }
    )

    model: str
    version: str
    documents: list[Document]


class ExplainRequest(Request):
    """A text, and the label in question; without one, what the model looks at."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": TEXT, "label": "beer"}]})

    text: str
    label: str | None = None


class Explanation(BaseModel):
    """The words that speak for and against a label, and whatever else the model can tell."""

    model: str
    version: str
    text: str | None
    label: str | None
    terms: list[dict[str, Any]]
    notes: list[str]
    members: dict[str, float]
    neighbours: list[dict[str, Any]]
    votes: list[dict[str, Any]]
    member_terms: dict[str, list[dict[str, Any]]]


class ModelSummary(BaseModel):
    """A model that is served."""

    name: str
    type: str
    version: str
    loaded: str
    labels: int
    documents: str = Field(description="what it reads: texts or rows")
    calibrated: bool
    explains: bool
    problem: str | None = Field(description="why a newer version in the folder does not answer")


class Models(BaseModel):
    """All models."""

    models: list[ModelSummary]


class ModelDetails(ModelSummary):
    """A model with its card and its limits."""

    card: dict[str, Any] | None
    thresholds: dict[str, float]
    limits: dict[str, int]


class Expected(BaseModel):
    """What to expect of labels that reach a threshold, by documents held out of training."""

    threshold: float
    precision: float | None = Field(description="how many of those given are right; of none, null")
    recall: float = Field(description="how many of the right ones are given")
    f1: float
    labels: float = Field(description="how many a document is given")


class Thresholds(BaseModel):
    """What to expect at each threshold; an empty list where the model does not know."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "version": "5f2c9a0b77d1",
                    "k": 5,
                    "documents": 2000,
                    "named": {"auto": 0.31, "auto-document": 0.27},
                    "expected": [
                        {
                            "threshold": 0.31,
                            "precision": 0.71,
                            "recall": 0.64,
                            "f1": 0.67,
                            "labels": 2.1,
                        }
                    ],
                }
            ]
        }
    )

    version: str
    k: int | None = Field(description="labels for each document, at most")
    documents: int = Field(description="held-out documents that were counted")
    named: dict[str, float] = Field(description="the thresholds that have a name")
    expected: list[Expected]


class FoundLabel(BaseModel):
    """A label and how many training documents have it."""

    id: int
    label: str
    uri: str | None
    documents: int
    share: float


class FoundLabels(BaseModel):
    """Labels that were found."""

    version: str
    labels: list[FoundLabel]


class LabelLink(BaseModel):
    """Another label."""

    id: int
    label: str


class LabelDetails(FoundLabel):
    """A label, with what the model's vocabulary says about it, if it has one."""

    names: list[str] = Field(description="in all languages, with the alternative ones")
    broader: list[LabelLink]
    narrower: list[LabelLink]


class Shown(Request):
    """A label that was suggested."""

    label: Name
    score: Value


class FeedbackRequest(Request):
    """What a person says about the labels of a text."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "text": TEXT,
                    "shown": [{"label": "beer", "score": 0.93}, {"label": "bread", "score": 0.4}],
                    "accepted": ["beer"],
                    "rejected": ["bread"],
                    "added": ["brewing"],
                    "by": "ab",
                }
            ]
        }
    )

    text: Annotated[str, Field(min_length=1)]
    shown: Annotated[list[Shown], Field(max_length=MOST_LABELS)] = []
    accepted: Names = []
    rejected: Names = []
    added: Names = []
    by: Annotated[str, Field(max_length=200)] | None = None
    document: Annotated[str, Field(max_length=1000)] | None = None
    version: Annotated[str, Field(max_length=64)] | None = None


class Stored(BaseModel):
    """The number of what was stored."""

    id: int


class Problem(BaseModel):
    """What is wrong, as RFC 9457 has it; `detail` is the sentence to show."""

    type: str
    title: str
    status: int
    detail: str


# -- Annif's --------------------------------------------------------------------------------------


class AnnifDocument(BaseModel):
    """A document of suggest-batch."""

    text: str
    document_id: str | None = None


class AnnifBatch(BaseModel):
    """The body of suggest-batch."""

    documents: list[AnnifDocument]


class AnnifSubject(BaseModel):
    """A subject of a document to learn from: a label, or the URI that suggest gives for it."""

    label: str | None = None
    uri: str | None = None


class AnnifLearned(BaseModel):
    """A document to learn from."""

    text: Annotated[str, Field(min_length=1)]
    subjects: list[AnnifSubject]
