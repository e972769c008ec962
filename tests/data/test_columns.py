"""Which column is what: by name, in several languages, and by content."""

import pytest

from longtail.data.columns import (
    ID_NAMES,
    LABEL_NAMES,
    TEXT_NAMES,
    TEXT_PARTS,
    Columns,
    choose_columns,
    normalize,
    tell_apart,
)
from longtail.data.labels import choose_separator
from longtail.errors import DataError
from longtail.reading import ReadOptions

TITLES = [f"the {word} of many a long winter" for word in "abcdefghijkl"]
TOPICS = ["beer", "wine", "beer; wine", "ale"] * 3


def choose(values, *, wanted=True, **options):
    return choose_columns(list(values), lambda: values, ReadOptions(**options), "x", labels=wanted)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["id", "Text", "TAGS"], Columns(("Text",), "TAGS", "id")),
        (["labels", "body", "title"], Columns(("title", "body"), "labels")),
        (["Doc ID", "Titel", "Zusammenfassung", "Schlagwörter"],
         Columns(("Titel", "Zusammenfassung"), "Schlagwörter", "Doc ID")),
        (["título", "resumen", "palabras clave"], Columns(("título", "resumen"), "palabras clave")),
        (["nimeke", "tiivistelmä", "asiasanat"], Columns(("nimeke", "tiivistelmä"), "asiasanat")),
        (["titolo", "argomenti"], Columns(("titolo",), "argomenti")),
        (["rubrik", "ämnesord"], Columns(("rubrik",), "ämnesord")),
    ],
)  # fmt: skip
def test_columns_by_name(names, expected):
    assert choose({name: ["1"] for name in names}) == expected


def test_known_names_are_written_as_they_are_compared():
    for name in (*ID_NAMES, *LABEL_NAMES, *TEXT_NAMES, *(n for part in TEXT_PARTS for n in part)):
        assert normalize(name) == name
    assert not set(LABEL_NAMES) & {*TEXT_NAMES, *(n for part in TEXT_PARTS for n in part)}


def test_columns_by_content():
    values = {"a": list(map(str, range(12))), "b": TITLES, "c": TOPICS}
    assert choose(values) == Columns(("b",), "c")
    assert choose(values, wanted=False) == Columns(("b",))
    lists = {"b": TITLES, "c": [["beer"], ["wine"]] * 6, "d": TITLES[::-1]}
    assert choose(lists).labels == "c"


def test_the_subject_of_a_message_is_its_title_and_that_of_a_book_its_labels():
    tickets = {"subject": TITLES, "body": TITLES, "queue": ["billing", "login", "login"] * 4}
    assert choose(tickets) == Columns(("subject", "body"), "queue")
    assert choose({"subject": TITLES, "tags": TOPICS}) == Columns(("subject",), "tags")
    books = {"title": TITLES, "subject": TOPICS}
    assert choose(books) == Columns(("title",), "subject")
    headings = [f"{word} in winter; {word} beer of the north" for word in "abcdefghijkl"]
    assert choose({"title": TITLES, "subject": headings}) == Columns(("title",), "subject")
    assert choose({**tickets, "title": TITLES}, labels="subject").labels == "subject"


def test_two_columns_of_labels_are_unclear():
    with pytest.raises(DataError, match="no column is recognized as the labels; the columns are"):
        choose({"b": TITLES, "c": TOPICS, "d": TOPICS[::-1]})


def test_options_come_first():
    values = {"text": TITLES, "labels": TOPICS, "a,b": TITLES, "c": TOPICS, "n": TOPICS}
    assert choose(values, text="a,b", labels="c", id="n") == Columns(("a,b",), "c", "n")
    assert choose(values, text=["a,b", "Text"]) == Columns(("a,b", "text"), "labels")
    assert choose(values, text="labels", labels="text") == Columns(("labels",), "text")


def test_a_column_that_stands_there_twice():
    with pytest.raises(DataError, match="the column 'text' stands there twice"):
        choose_columns(["text", "text"], dict, ReadOptions(), "x", labels=False)


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["Billing Question", "Refund Request"], ""),
        (["Billing", "Billing Question", "Question"], ""),
        (["billing question", "refund request"], ""),
        (["rna dna", "rna", "dna"], " "),
        (["3 4", "7"], " "),
        (["a b", "b c", "a c", "a b c"], " "),
        (["<http://a/1> <http://a/2>", "<http://a/3>"], " "),
        (["http://a/1,2 http://a/3;4"], " "),
        (["beer", "wine"], ""),
        (["red wine, beer", "ale"], ","),
        (["a, b; c", "d"], ";"),
        (["a\tb; c"], "\t"),
        ([["a b"], "c"], ""),
        ([], ""),
    ],
)
def test_what_separates_labels(cells, separator):
    assert choose_separator(cells) == separator


def test_lines_of_labels_are_split_at_blanks_where_names_do_not_speak_against_it():
    assert choose_separator(["billing question"], in_doubt=" ") == " "
    assert choose_separator(["Billing Question"], in_doubt=" ") == ""


def test_columns_of_one_name_are_told_apart():
    assert tell_apart(["a", "b"]) == ["a", "b"]
    assert tell_apart(["a", "a", "", "a (2)", ""]) == ["a", "a (3)", "", "a (2)", " (2)"]
