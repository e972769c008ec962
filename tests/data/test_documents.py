"""Texts and labels in JSON lines, fastText files and parallel files."""

import json

import pytest
from planted import pairs

from longtail.data import ReadOptions, load, read_batches
from longtail.errors import DataError, ParameterError

HINT = 'a document is {"text": "…", "labels": ["…"]}'


def load_text(path, content):
    path.write_text(content)
    return load(path).train


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


def test_json_lines(path):
    data = load_text(
        path,
        '{"text": "pale ale", "labels": ["beer", "ale", "beer"]}\n\n'
        '  {"labels": [], "text": "nothing", "id": 3}  \n'
        '{"text": null, "labels": null}\r\n'
        '{"text": "k\\u00f6lsch \\ud83c\\udf7a \\ud83c", "labels": ["kölsch", 7]}',
    )
    assert pairs(data) == [
        ("pale ale", ["ale", "beer"]),
        ("nothing", []),
        ("", []),
        ("kölsch 🍺 \ufffd", ["7", "kölsch"]),
    ]


@pytest.mark.parametrize("key", ["labels", "tags", "subjects", "keywords", "topics", "categories"])
def test_other_names_of_fields(path, key):
    data = load_text(path, json.dumps({"title": "A", "body": "b", "uid": "1", key: ["x"]}))
    assert pairs(data) == [("A b", ["x"])]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"labels": ["x"]}', f'no "text" in the object, only "labels"; {HINT}'),
        ('{"text": "a"}', f'no "labels" in the object, only "text"; {HINT}'),
        ("{}", f'no "text" in the object, only nothing; {HINT}'),
        ('{"text": 3, "labels": []}', '"text" must be a string; got a number'),
        ('{"text": ["a"], "labels": []}', '"text" must be a string; got a list'),
        (
            '{"text": "a", "labels": "x y"}',
            '"labels" must be a list such as ["beer", "wine"]; got a string',
        ),
        (
            '{"text": "a", "labels": {"x": 1}}',
            '"labels" must be a list such as ["beer", "wine"]; got an object',
        ),
        ('{"text": "a", "labels": [1.5]}', "a label must be a string; got a number"),
        ('{"text": "a", "labels": [null]}', "a label must be a string; got null"),
        ('{"text": "a", "labels": [true]}', "a label must be a string; got true or false"),
        ('{"text": "a", "labels": [["x"]]}', "a label must be a string; got a list"),
        ('{"text": "a", "labels": [" "]}', "a label must be a string; got an empty string"),
        ("[1, 2]", "each line must be a JSON object; got a list"),
        ("pale ale", "not valid JSON: Expecting value at column 1"),
        ('{"text": "a"', "not valid JSON: Expecting ',' delimiter at column 13"),
        ('{"text": "a"} {}', "not valid JSON: Extra data at column 15"),
        ('{"text": ' + "[" * 100_000, "the JSON is nested too deeply"),
    ],
)
def test_a_broken_line_names_file_and_line(path, line, message):
    with pytest.raises(DataError) as caught:
        load_text(path, '{"text": "fine", "labels": ["x"]}\n\n' + line + "\n")
    assert str(caught.value) == f"{path}:3: {message}"


@pytest.mark.parametrize("n_words", [10, 20_000, 100_000])
def test_a_long_first_object_tells_the_fields_as_well(path, n_words):
    text = " ".join(["word"] * n_words)
    data = load_text(path, f'{{"key": 7, "title": "a", "body": "{text}", "tags": "x;y"}}\n' * 2)
    assert pairs(data) == [(f"a {text}", ["x", "y"])] * 2
    assert data.ids == ["7", "7"]


def test_a_string_of_labels_may_be_a_json_array(path):
    line = '{"text": "a", "labels": "[\\"pale ale\\", \\"x;y\\"]"}\n'
    data = load_text(path, line + '{"text": "b", "labels": "[]"}\n')
    assert pairs(data) == [("a", ["pale ale", "x;y"]), ("b", [])]


@pytest.mark.parametrize("label", ["true", "1.0"])
def test_what_python_takes_for_1_is_still_no_label(path, label):
    with pytest.raises(DataError, match="data:2: a label must be a string; got"):
        load_text(path, f'{{"text": "a", "labels": [1]}}\n{{"text": "b", "labels": [{label}]}}\n')


def test_a_number_of_too_many_digits(path):
    with pytest.raises(DataError, match=r"data:1: not valid JSON: Exceeds the limit"):
        load_text(path, '{"text": "a", "labels": [' + "9" * 5000 + "]}")


def test_fasttext(path):
    data = load_text(
        path, "no labels here\n__label__beer __label__pale-ale  pale ale\n\n__label__wine\n"
    )
    assert pairs(data) == [
        ("no labels here", []),
        (" pale ale", ["beer", "pale-ale"]),
        ("", []),
        ("", ["wine"]),
    ]


def test_many_labels_on_a_line_take_linear_time(path):
    data = load_text(path, "__label__a " * 200_000 + "\n")
    assert pairs(data) == [("", ["a"])]


@pytest.mark.parametrize(
    "content",
    [
        "text,labels\n__label__x b,y\nc,z\n",
        "text\tlabels\n__label__x b\ty\n",
        'text,labels\n"two\n__label__x lines",y\n__label__z,w\n',
        "title;tags\n" + "a;b\n" * 20_000 + "__label__x;b\n",
    ],
)
def test_a_table_with_what_looks_like_fasttext_is_a_table(path, content):
    data = load_text(path, content)
    assert data.n_documents == content.count("\n") - 1 - content.count('"') // 2
    assert not any("__label__" in name for name in data.label_names)


@pytest.mark.parametrize(
    ("content", "what", "other"),
    [
        ("text,labels\nb\n__label__x c\n", "the first line is the header of a table", "csv"),
        ("a\nb\n__label__x c\n", "most of them do not", "text"),
    ],
)
def test_what_could_be_two_formats_asks_for_one(path, content, what, other):
    with pytest.raises(DataError) as caught:
        load_text(path, content)
    assert str(caught.value) == (
        f"{path}: 1 of the first 3 lines begin with __label__ as in fastText, but {what}; say "
        f"which it is with --format fasttext or --format {other} "
        "(in Python format=)"
    )
    assert load(path, format="fasttext").train.n_documents == 3
    (batch,) = read_batches(path, ReadOptions(format="text"))
    assert batch.texts == content.splitlines()


def test_formats_have_names(path):
    path.write_text("3 4\n")
    (batch,) = read_batches(path, ReadOptions(format="text"))
    assert batch.texts == ["3 4"]
    with pytest.raises(ParameterError, match="no format is called 'cvs'; did you mean 'csv'"):
        load(path, format="cvs")
    with pytest.raises(DataError, match="rows without labels"):
        load(path, format="matrix")


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a", '{"text": "a", "labels": ["%s"]}\n', ":1:"),
        ("a", "__label__%s a\n", ":1:"),
        ("a", "text,labels\na,%s\n", ": document 1:"),
        ("a", 'text,labels\na,"[""%s""]"\n', ":2:"),
    ],
)
def test_a_label_of_too_many_digits(tmp_path, name, content, where):
    path = tmp_path / name
    with pytest.raises(DataError) as caught:
        load_text(path, content % ("1" * 5000))
    assert str(caught.value) == (
        f"{path}{where} a label must be a string; got a number of 5,000 digits, and at most 4,300 "
        "are possible"
    )
    assert load_text(path, content % ("1" * 4300)).n_labels == 1


def test_a_blank_label_in_a_cell(path):
    with pytest.raises(DataError, match=r"data:2: a label must be a string; got an empty string"):
        load_text(path, 'text,labels\na,"["" ""]"\n')


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("rna cell-biology\n\nrna\n", [["cell-biology", "rna"], [], ["rna"]]),
        ("pale ale, beer\n\nred wine\n", [["beer", "pale ale"], [], ["red wine"]]),
        ("a, b\tc\n\nd e\n", [["a, b", "c"], [], ["d e"]]),
        ("a; b\n\nc, d\n", [["a", "b"], [], ["c, d"]]),
    ],
    ids=["blanks", "commas", "tabs", "semicolons"],
)
def test_parallel_files(tmp_path, labels, expected):
    (tmp_path / "train_texts.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "train_labels.txt").write_text(labels)
    train, test = load(tmp_path)
    assert pairs(train) == list(zip(["one", "two", "three"], expected, strict=True))
    assert test is None
    assert pairs(load(tmp_path / "train_texts.txt").train) == pairs(train)


def test_the_training_labels_say_how_test_labels_are_split(tmp_path):
    (tmp_path / "train_texts.txt").write_text("one\n")
    (tmp_path / "train_labels.txt").write_text("pale ale,beer\n")
    (tmp_path / "test_texts.txt").write_text("two\n")
    (tmp_path / "test_labels.txt").write_text("pale ale\n")
    assert pairs(load(tmp_path).test) == [("two", ["pale ale"])]


def test_parallel_files_of_different_length(tmp_path):
    texts, labels = tmp_path / "train_texts.txt", tmp_path / "train_labels.txt"
    texts.write_text("one\ntwo\n")
    labels.write_text("a\n")
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        f"{texts}: 2 lines of texts, but 1 lines of labels in {labels}; "
        "line n of both must be the same document"
    )


def test_parallel_files_without_labels(tmp_path):
    (tmp_path / "train_texts.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'train_texts.txt'}: the labels of these texts are missing: "
        "no train_labels.txt"
    )


def test_strings_and_objects_are_labels_side_by_side(tmp_path):
    line = json.dumps({"text": "red wine", "labels": ["wine", {"label": "red"}]})
    (tmp_path / "x.jsonl").write_text(line + "\n")
    assert load(tmp_path / "x.jsonl").train.label_names == ["red", "wine"]
