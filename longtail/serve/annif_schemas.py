"""What clients of Annif send and get."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from longtail.serve.schemas import example

URN = "urn:longtail:"
LANGUAGE = "und"  # undetermined, by BCP 47
VOCABULARY: Any = {"vocab_id": "recipes", "languages": ["en"], "size": 1963, "loaded": True}
PROJECT: Any = {
    "project_id": "recipes",
    "name": "recipes",
    "language": LANGUAGE,
    "vocab": VOCABULARY,
    "vocab_language": LANGUAGE,
    "backend": {"backend_id": "linear"},
    "is_trained": True,
    "modification_time": "2026-11-16 09:30:00",
}
SUGGESTION: Any = {"uri": f"{URN}beer", "label": "beer", "notation": None, "score": 0.93}


class AnnifDocument(BaseModel):
    """A document of suggest-batch."""

    text: str
    document_id: str | None = None


class AnnifBatch(BaseModel):
    """The body of suggest-batch."""

    model_config = example({"documents": [{"document_id": "a", "text": "A dark beer"}]})

    documents: list[AnnifDocument]


class AnnifSubject(BaseModel):
    """A subject of a document to learn from: a label, or the URI that suggest gives for it."""

    label: str | None = None
    uri: str | None = None


class AnnifLearned(BaseModel):
    """A document to learn from."""

    model_config = example({"text": "A dark beer", "subjects": [{"uri": f"{URN}beer"}]})

    text: Annotated[str, Field(min_length=1)]
    subjects: list[AnnifSubject]


class AnnifInfo(BaseModel):
    """What answers."""

    model_config = example({"title": "longtail, as Annif REST API", "version": "1.0"})

    title: str
    version: str


class AnnifVocabulary(BaseModel):
    """The labels of a model."""

    model_config = example(VOCABULARY)

    vocab_id: str
    languages: list[str]
    size: int
    loaded: bool


class AnnifVocabularies(BaseModel):
    """The labels of all models."""

    model_config = example({"vocabs": [VOCABULARY]})

    vocabs: list[AnnifVocabulary]


class AnnifProject(BaseModel):
    """A model."""

    model_config = example(PROJECT)

    project_id: str
    name: str
    language: str
    vocab: AnnifVocabulary
    vocab_language: str
    backend: dict[str, str]
    is_trained: bool
    modification_time: str


class AnnifProjects(BaseModel):
    """All models."""

    model_config = example({"projects": [PROJECT]})

    projects: list[AnnifProject]


class AnnifSuggestion(BaseModel):
    """A label of a document."""

    uri: str
    label: str
    notation: str | None
    score: float


class AnnifSuggestions(BaseModel):
    """The labels of a document."""

    model_config = example({"results": [SUGGESTION]})

    results: list[AnnifSuggestion]


class AnnifAnswers(AnnifSuggestions):
    """The labels of one of several documents."""

    model_config = example({"document_id": "a", "results": [SUGGESTION]})

    document_id: str | None
