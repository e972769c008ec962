"""What clients send and get, as the OpenAPI description shows it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from longtail.evaluation.ordering import By

MOST_LABELS = 1000  # of a document
MOST_LANGUAGE = 35  # characters
Name = Annotated[str, Field(min_length=1, max_length=10_000)]
Names = Annotated[list[Name], Field(max_length=MOST_LABELS)]
Threshold = Annotated[float, Field(ge=0, le=1)] | Literal["auto", "auto-document"]
Value = Annotated[float, Field(allow_inf_nan=False)]
TEXT = "Brewing at home: which yeast for a dark beer?"
VERSION = "5f2c9a0b77d1"
SUMMARY: Any = {
    "name": "recipes",
    "type": "linear",
    "version": VERSION,
    "loaded": "2026-11-16 09:30:00",
    "labels": 1963,
    "documents": "texts",
    "calibrated": True,
    "explains": True,
    "problem": None,
}
BEER: Any = {"id": 17, "label": "olut", "own": "beer"}
FOUND: Any = {**BEER, "uri": None, "documents": 241, "share": 0.0121}
BREWING: Any = {"id": 31, "label": "oluen valmistus", "own": "brewing"}


def example(*bodies: Any) -> ConfigDict:
    """Return what shows these bodies in the description."""
    return ConfigDict(json_schema_extra={"examples": list(bodies)})


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
        json_schema_extra={
            "examples": [{"text": TEXT, "k": 3}, {"texts": [TEXT, "A sea trip"]}],
            "oneOf": [{"required": [name]} for name in ("text", "texts", "rows")],
        }
    )

    text: str | None = Field(None, description="one document")
    texts: list[str] | None = Field(None, description="several documents")
    rows: list[Row] | None = Field(None, description="documents for a model of feature rows")
    k: int | None = Field(None, ge=1, le=MOST_LABELS, description="labels for each, at most; 5")
    threshold: Threshold | None = Field(
        None, description="the least probability of a label; auto is the best for F1"
    )
    language: str | None = Field(
        None, max_length=MOST_LANGUAGE, description="name labels so, by the model's vocabulary"
    )
    explain: bool = Field(
        False, description="say why, for the first 10 labels of each of 20 documents at most"
    )


class Term(BaseModel):
    """A word or feature, and how much it speaks for a label; below 0, against it."""

    term: str
    weight: float
    spans: list[tuple[int, int]] = Field(description="its places in the text, in characters")
    loss: float | None = Field(None, description="how much lower the score is without it")
    parts: dict[str, float] | None = Field(None, description="what the weight is made of")


class Why(BaseModel):
    """Why a label was given: the heaviest words and, of a fusion, the share of each member."""

    terms: list[Term]
    members: dict[str, float]


class Label(BaseModel):
    """A label that was predicted."""

    id: int
    label: str
    score: float
    uri: str | None = Field(None, description="where the label has one")
    why: Why | None = Field(None, description="where it was asked for")


class Document(BaseModel):
    """The labels of a document, best first."""

    labels: list[Label]


class Prediction(BaseModel):
    """The answer to predict; `version` is that of the model which answered."""

    model_config = example(
        {
            "model": "recipes",
            "version": VERSION,
            "documents": [{"labels": [{"id": 17, "label": "beer", "score": 0.93}]}],
        }
    )

    model: str
    version: str
    documents: list[Document]


class ExplainRequest(Request):
    """A text, and the label in question; without one, what the model looks at."""

    model_config = example({"text": TEXT, "label": "beer"})

    text: str
    label: str | None = None


class TrainingDocument(BaseModel):
    """A training document."""

    number: int = Field(description="its position in the training documents, from 0")
    labels: list[str]
    text: str | None = Field(description="how its text begins, if the model keeps that")


class SimilarDocument(TrainingDocument):
    """A training document that is like the text."""

    similarity: float


class Vote(BaseModel):
    """What a member of a fusion says about a label."""

    member: str
    label: str
    rank: int | None = Field(description="in the member's own list, from 1; null: not there")
    score: float
    weight: float = Field(description="how much lower the label's log-odds are without the member")


class Explanation(BaseModel):
    """The words that speak for and against a label, and whatever else the model can tell."""

    model_config = example(
        {
            "model": "recipes",
            "version": VERSION,
            "text": TEXT,
            "label": "beer",
            "terms": [{"term": "yeast", "weight": 0.41, "spans": [[24, 29]]}],
            "notes": ["Score 0.930, rank 1; the best scores are 0.930, 0.400, 0.121."],
            "members": {},
            "neighbours": [],
            "votes": [],
            "member_terms": {},
        }
    )

    model: str
    version: str
    text: str | None
    label: str | None
    terms: list[Term]
    notes: list[str]
    members: dict[str, float] = Field(description="of a fusion: the share of each in the score")
    neighbours: list[SimilarDocument] = Field(description="training documents like the text")
    votes: list[Vote] = Field(description="of a fusion: what each member says")
    member_terms: dict[str, list[Term]]


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

    model_config = example({"models": [SUMMARY]})

    models: list[ModelSummary]


class ModelDetails(ModelSummary):
    """A model with its card and its limits."""

    model_config = example(
        {
            **SUMMARY,
            "card": {"model": "linear", "trained": "2026-11-15 18:02:11"},
            "thresholds": {"auto": 0.31, "auto-document": 0.27},
            "languages": ["en", "fi", "sv"],
            "limits": {"documents": 1000, "bytes": 16777216, "rare": 5},
            "feedback": True,
        }
    )

    card: dict[str, Any] | None
    thresholds: dict[str, float]
    languages: list[str] = Field(description="in which its vocabulary can name labels")
    limits: dict[str, int]
    feedback: bool = Field(description="whether this server keeps feedback")


class Expected(BaseModel):
    """What to expect of labels that reach a threshold, by documents held out of training."""

    threshold: float
    precision: float | None = Field(description="how many of those given are right; of none, null")
    recall: float = Field(description="how many of the right ones are given")
    f1: float
    labels: float = Field(description="how many a document is given")


class Thresholds(BaseModel):
    """What to expect at each threshold; an empty list where the model does not know."""

    model_config = example(
        {
            "version": VERSION,
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
    )

    version: str
    k: int | None = Field(description="labels for each document, at most")
    documents: int = Field(description="held-out documents that were counted")
    named: dict[str, float] = Field(description="the thresholds that have a name")
    expected: list[Expected]


class LabelLink(BaseModel):
    """A label by its names."""

    id: int
    label: str = Field(description="in the language that was asked for, else the model's own name")
    own: str = Field(description="the model's own name, which explain and feedback take")


class FoundLabel(LabelLink):
    """A label and how many training documents have it."""

    uri: str | None
    documents: int
    share: float


class FoundLabels(BaseModel):
    """Labels that were found."""

    model_config = example({"version": VERSION, "labels": [FOUND]})

    version: str
    labels: list[FoundLabel]


class NearLabel(LabelLink):
    """A label that is like another one."""

    similarity: float = Field(description="above 0; 1 for labels that cannot be told apart")


class LabelDetails(FoundLabel):
    """A label, with what the model's vocabulary says about it, if it has one."""

    model_config = example(
        {
            "version": VERSION,
            **FOUND,
            "uri": "http://www.yso.fi/onto/yso/p1319",
            "names": ["beer", "olut", "öl"],
            "broader": [{"id": 4, "label": "juomat", "own": "beverages"}],
            "narrower": [],
            "related": [BREWING],
            "neighbours": [{**BREWING, "similarity": 0.52}],
            "examples": [{"number": 7, "labels": ["beer"], "text": "A dark beer …"}],
        }
    )

    version: str
    names: list[str] = Field(description="in all languages, with the alternative ones")
    broader: list[LabelLink]
    narrower: list[LabelLink]
    related: list[LabelLink]
    neighbours: list[NearLabel] = Field(
        description="labels like this one, by the model, where it can tell; nearest first"
    )
    examples: list[TrainingDocument] = Field(
        description="training documents that carry it, where the model keeps any"
    )


class OrderRequest(Request):
    """Documents, and by what to order them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"texts": [TEXT, "A sea trip"], "by": "useful"}],
            "oneOf": [{"required": [name]} for name in ("texts", "rows")],
        }
    )

    texts: list[str] | None = Field(None, description="documents")
    rows: list[Row] | None = Field(None, description="documents for a model of feature rows")
    by: By = Field(
        "unsure",
        description="unsure: where the model is least sure first. useful: the same, where rare "
        "labels count more, and labels that earlier documents ask about count less",
    )


class Ordered(BaseModel):
    """The numbers of the documents, from 0, those to look at first in front."""

    model_config = example({"version": VERSION, "order": [1, 0], "values": [0.61, 0.12]})

    version: str
    order: list[int]
    values: list[float] = Field(description="of each in this order; the higher, the less sure")


class Shown(Request):
    """A label that was suggested."""

    label: Name
    score: Value


class FeedbackRequest(Request):
    """What a person says about the labels of a text."""

    model_config = example(
        {
            "text": TEXT,
            "shown": [{"label": "beer", "score": 0.93}, {"label": "bread", "score": 0.4}],
            "accepted": ["beer"],
            "rejected": ["bread"],
            "added": ["brewing"],
            "by": "ab",
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

    model_config = example({"id": 412})

    id: int


class ExtractedText(BaseModel):
    """The text of a file."""

    model_config = example({"text": TEXT})

    text: str


class Problem(BaseModel):
    """What is wrong, as RFC 9457 has it; `detail` is the sentence to show."""

    model_config = example(
        {
            "type": "about:blank",
            "title": "Not Found",
            "status": 404,
            "detail": "there is no model 'recipe'; did you mean 'recipes'?",
        }
    )

    type: str
    title: str
    status: int
    detail: str
