"""Which column of a table holds what: named by the user, known by its name, or told by its content.

A name is known in any case, with `_`, `-` and blanks alike, in English and the larger European
languages. The text is a column called text, or else those called title, body and so on, joined by a
blank in the order below. Where names say nothing, the text is the column with the most words, and
the labels are the one column whose values come again and again. What stays unclear is an error that
lists the columns and shows the option.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longtail.data.labels import SEPARATORS, choose_separator, split_cell
from longtail.errors import DataError, suggest
from longtail.reading import ReadOptions

SHOWN_COLUMNS = 12


def _words(text: str) -> list[str]:
    return text.split()


TEXT_NAMES = _words(
    "text texts texte texto testo tekst teksti tekstit document documento dokument dokumentti "
    "asiakirja"
)
# Each is one part of a document, in the order in which they are joined.
TEXT_PARTS = [
    _words(names)
    for names in (
        "title titel titre título titulo titolo tittel tytuł otsikko nimeke rubrik betreff "
        "überschrift heading headline",
        "subtitle untertitel sous_titre subtítulo sottotitolo alanimeke undertitel",
        "question frage pregunta domanda kysymys fråga spørgsmål pergunta vraag pytanie query",
        "message nachricht mensaje messaggio meddelande viesti mensagem bericht wiadomość",
        "body",
        "content contents inhalt contenu contenido contenuto conteúdo innehåll innhold indhold "
        "inhoud sisältö treść",
        "abstract zusammenfassung résumé resume resumen riassunto resumo sammanfattning sammendrag "
        "samenvatting tiivistelmä streszczenie summary",
        "description beschreibung descripción descripcion descrizione descrição beskrivning "
        "beskrivelse beschrijving kuvaus opis",
        "comment review sentence kommentar commentaire comentario commento comentário arvostelu "
        "kommentti avis reseña",
    )
]
LABEL_NAMES = _words(
    "labels label tags tag subjects keywords categories category topics topic target_ind "
    "subject_uris subject classes class keyword "
    "kategorien kategorie themen thema schlagworte schlagwörter schlagwort etiketten klassen "
    "catégories catégorie sujets sujet étiquettes étiquette thèmes thème mots_clés mot_clé "
    "matières categorías categoría categorias categoria etiquetas etiqueta temas tema "
    "palabras_clave materias argomenti argomento etichette etichetta categorie parole_chiave "
    "soggetti assuntos assunto rótulos rótulo palavras_chave "
    "kategorier kategori ämnen ämne ämnesord nyckelord etiketter emner emne emneord stikord "
    "aiheet aihe asiasanat asiasana avainsanat avainsana luokat luokka "
    "onderwerpen onderwerp trefwoorden trefwoord categorieën "
    "etykiety etykieta kategoria tematy temat słowa_kluczowe"
)
ID_NAMES = _words(
    "id doc_id docid document_id documentid uid uuid guid identifier record_id row_id ticket_id "
    "ticket key kennung dokument_id identifiant identificador identificatore identifikator "
    "tunniste ident"
)

MAYBE_TITLES = ("subject",)  # of a book they are labels, of a message its title
LEAST_WORDS = 3.0  # of a column that is the text, a cell on average
FEWEST_ROWS = 10  # that say whether values come again
MOST_DISTINCT = 0.5  # share of different labels among all of them


@dataclass(frozen=True)
class Columns:
    """The columns that hold the text, the labels and the ids; None where there are none.

    Attributes:
        text: the columns that are joined to be the text.
        labels: the column with the labels.
        id: the column with the documents' ids.
        separator: what stands between the labels of a cell; None where that is not known.
        delimiter: what stands between the cells of a line; None if it is no such file.
        origin: why these columns, in words for those who are told which were read.
    """

    text: tuple[str, ...]
    labels: str | None = None
    id: str | None = None
    separator: str | None = None
    delimiter: str | None = None
    origin: str = ""

    def pin(self, options: ReadOptions) -> ReadOptions:
        """Return options that name these columns, for the other files of a split."""
        return replace(options, text=self.text, labels=self.labels, id=self.id)

    def describe(self, labels: str = "") -> str:
        """Say which column is what; `labels` is how their cells are split."""
        parts = [
            f"text: {' + '.join(self.text)}",
            ", ".join(filter(None, (f"labels: {self.labels}", labels))) if self.labels else "",
            f"id: {self.id}" if self.id else "",
        ]
        said = "; ".join(filter(None, parts))
        return f"{said} ({self.origin})" if self.origin else said

    def stand_in(self, names: Iterable[str]) -> bool:
        """Whether all columns of the text are among these."""
        return bool(self.text) and {*self.text} <= {*names}

    def fill(self, options: ReadOptions, names: Sequence[str]) -> ReadOptions:
        """Return options that name these columns as well, where they are there and still free."""
        named = [options.text] if isinstance(options.text, str) else options.text or ()
        taken = {part.strip() for name in named for part in (name, *name.split(","))}
        taken |= {name for name in (options.labels, options.id) if name is not None}
        free = [name for name in names if name not in taken]
        return options.over(
            replace(
                options,
                text=self.text if self.stand_in(free) else None,
                labels=self.labels if self.labels in free else None,
                id=self.id if self.id in free else None,
            )
        )


def normalize(name: str) -> str:
    """Return a name as it is compared."""
    return re.sub(r"[\W_]+", "_", name.strip().casefold()).strip("_")


def find_text(names: Iterable[str]) -> list[str]:
    """Return the columns whose names say that they are the text, as they are to be joined."""
    names = list(names)
    whole = _by_name(names, TEXT_NAMES)
    if whole is not None:
        return [whole]
    return [found for part in TEXT_PARTS if (found := _by_name(names, part)) is not None]


def find_labels(names: Iterable[str]) -> str | None:
    """Return the column that holds the labels by its name."""
    return _by_name(names, LABEL_NAMES)


def choose_columns(
    names: Sequence[str],
    sample: Callable[[], Mapping[str, Sequence[Any]]],
    options: ReadOptions,
    path: str | Path | None,
    *,
    labels: bool,
) -> Columns:
    """Return which columns hold what; `sample` gives the values of some rows, if it is asked.

    Without `labels` there need not be any, but a column that holds them is still no text.
    """
    like = columns_like(options)
    filled = like.fill(options, names)
    columns = _Chooser(list(names), sample, filled, path).choose(labels=labels)
    taken = [
        name
        for name in ("text", "labels", "id")
        if getattr(options, name) is None and getattr(columns, name) == getattr(filled, name)
    ]
    columns = replace(
        columns,
        separator=like.separator if columns.labels == like.labels else None,
        origin=like.origin if any(getattr(columns, name) for name in taken) else "",
    )
    for name in filter(None, (*columns.text, columns.labels, columns.id)):
        if list(names).count(name) > 1:
            raise DataError(f"the column '{name}' stands there twice", path=path)
    return columns


def tell_apart(names: Sequence[str]) -> list[str]:
    """Return names of which no two are the same: the second "note" is "note (2)"."""
    told: dict[str, None] = {}
    given = set(names)
    for name in names:
        found, n = name, 1
        while found in told or (n > 1 and found in given):
            n += 1
            found = f"{name} ({n})"
        told[found] = None
    return list(told)


def columns_like(options: ReadOptions) -> Columns:
    """Return the columns that are taken where they are there: those of training, or none."""
    like: Columns = options.like or Columns(())
    return like


class _Chooser:
    def __init__(
        self,
        names: list[str],
        sample: Callable[[], Mapping[str, Sequence[Any]]],
        options: ReadOptions,
        path: str | Path | None,
    ) -> None:
        self.names, self.sample, self.options, self.path = names, sample, options, path

    def choose(self, *, labels: bool) -> Columns:
        given = self.options
        # Labels that nobody reads need not be there.
        wanted = given.labels if labels or given.labels in self.names else None
        label = self._find(wanted, "labels")
        text = self._given_text(given.text)
        id = self._find(given.id, "id")
        taken = [name for name in (*text, label, id) if name is not None]
        free = [name for name in self.names if name not in taken]
        id = id or _by_name(free, ID_NAMES)
        free = [name for name in free if name != id]
        subjects = [name for name in free if normalize(name) in MAYBE_TITLES]
        titles = [name for name in subjects if _are_titles(self.sample().get(name, ()))]
        label = label or find_labels(name for name in free if name not in titles)
        free = [name for name in free if name not in (label, *titles)]
        text = text or tuple(titles + (find_text(free) or self._text_by_content(free)))
        if not text:
            raise self._missing("text", "text")
        if label is None and labels:
            label = self._labels_by_content([name for name in free if name not in text])
        return Columns(text, label if labels else None, id)

    def _given_text(self, given: str | Sequence[str] | None) -> tuple[str, ...]:
        if given is None:
            return ()
        if isinstance(given, str):
            # A name may hold a comma itself.
            given = [given] if given in self.names else given.split(",")
        return tuple(name for each in given if (name := self._find(each.strip(), "text")))

    def _find(self, given: str | None, option: str) -> str | None:
        """Return the column that an option names, in any case."""
        if given is None or given in self.names:
            return given
        alike = [name for name in self.names if normalize(name) == normalize(given)]
        if len(alike) != 1:
            hint = suggest(given, self.names).removesuffix("?")
            raise DataError(
                f"there is no column '{given}' (--{option}){hint}; the columns are {self._list()}",
                path=self.path,
            )
        return alike[0]

    def _text_by_content(self, names: list[str]) -> list[str]:
        """Return the column with the most words, if these are more than names or numbers have."""
        if len(names) == 1 and len(self.names) == 1:
            return names
        values = self.sample()
        n_words = {name: _mean_words(values.get(name, ())) for name in names}
        best = max(n_words, key=lambda name: n_words[name], default=None)
        return [best] if best is not None and n_words[best] >= LEAST_WORDS else []

    def _labels_by_content(self, names: list[str]) -> str:
        """Return the one column whose values come again, or the only one that is left."""
        values = self.sample()
        repeated = [name for name in names if _are_labels(values.get(name, ()))]
        if len(repeated) == 1:
            return repeated[0]
        words = [name for name in names if not _are_numbers(values.get(name, ()))]
        if len(words) == 1 and not repeated:
            return words[0]
        raise self._missing("labels", "the labels")

    def _missing(self, option: str, what: str) -> DataError:
        return DataError(
            f"no column is recognized as {what}; the columns are {self._list()}; "
            f"name it with --{option} COLUMN (in Python {option}='COLUMN')",
            path=self.path,
        )

    def _list(self) -> str:
        shown = ", ".join(f"'{name:.40}'" for name in self.names[:SHOWN_COLUMNS])
        more = len(self.names) - SHOWN_COLUMNS
        return f"{shown} and {more} more" if more > 0 else shown or "none"


def _by_name(names: Iterable[str], known: Sequence[str]) -> str | None:
    """Return the first of the `known` names that is there."""
    there = {normalize(name): name for name in reversed(list(names))}
    return next((there[name] for name in known if name in there), None)


def _mean_words(values: Sequence[Any]) -> float:
    cells = [value for value in values if isinstance(value, str) and value.strip()]
    return sum(len(cell.split()) for cell in cells) / len(cells) if cells else 0.0


def _are_numbers(values: Sequence[Any]) -> bool:
    filled = [value for value in values if value not in (None, "", [])]
    return all(re.fullmatch(r"[\d.,:/+\- ]+", str(value)) for value in filled)


def _are_titles(values: Sequence[Any]) -> bool:
    """Return whether values have several words, not separated by marks, and hardly come again."""
    filled = [value for value in values if isinstance(value, str) and value.strip()]
    marked = sum(not set(SEPARATORS).isdisjoint(value) for value in filled)
    few = len(filled) < FEWEST_ROWS or 2 * marked > len(filled)
    return not few and len(set(filled)) > 0.9 * len(filled) and _mean_words(filled) >= LEAST_WORDS


def _are_labels(values: Sequence[Any]) -> bool:
    """Return whether values are short and come again and again, yet are not always the same."""
    filled = [value for value in values if isinstance(value, str | list) and value]
    if len(filled) < FEWEST_ROWS or _are_numbers(filled):
        return False
    separator = choose_separator(filled)
    counts = Counter(
        label
        for value in filled
        for label in (split_cell(value, separator) if isinstance(value, str) else map(str, value))
    )
    n = sum(counts.values())
    return 1 < len(counts) <= MOST_DISTINCT * n and _mean_words(list(counts)) < 2 * LEAST_WORDS
