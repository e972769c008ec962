"""Tables as people have them: every option and every guess, by the command that a user types."""

import csv
import json

import pytest
from command_line import fail, planted_rows, run, succeed

import longtail

NAMES = {
    "beer": "Billing Question",
    "bread": "Technical Issue",
    "chess": "Refund Request",
    "sailing": "Account Access",
}


def write_table(path, header, rows, *, delimiter=",", encoding="utf-8"):
    with path.open("w", encoding=encoding, newline="") as file:
        table = csv.writer(file, delimiter=delimiter)
        table.writerows([header, *rows])
    return path


def planted_table(path, header=("id", "message", "label"), n=120, **dialect):
    """Write tickets whose texts have line breaks, each with one label of two words."""
    rows = [
        (f"t{i}", text.replace(" ", "\n", 1), NAMES[labels[0]])
        for i, (text, labels) in enumerate(planted_rows(n, seed=0))
    ]
    return write_table(path, header, rows, **dialect)


def first_line(result):
    """Return what stderr says before any progress."""
    return result.stderr.splitlines()[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tickets")
    data = planted_table(folder / "tickets.csv")
    result = succeed("train", data, "--out", folder / "m", "--model", "linear", "--valid", "0")
    assert result.stderr.startswith(
        "Note: text: message; labels: label, one a document, e.g. 'Technical Issue' "
        "(--separator blank splits it); id: id\n"
    )
    return folder / "m"


# -- columns ----------------------------------------------------------------------------------


def test_columns_are_named(tmp_path):
    path = planted_table(tmp_path / "x.csv", ("a", "b", "c"))
    shown = succeed("data", "info", path, "--text", "b", "--labels", "c", "--id", "a")
    assert shown.stderr.startswith("Note: text: b; labels: c, one a document, e.g. 'Technical")
    assert shown.stderr.endswith("; id: a\n")
    assert "4 labels, documents as texts" in shown.stdout


def test_several_columns_are_joined(tmp_path, model):
    path = write_table(tmp_path / "x.csv", ["head", "rest"], [["hops", "malt brew"]] * 2)
    result = succeed("predict", model, path, "--text", "head,rest")
    assert first_line(result) == "Note: text: head + rest"


def test_an_unknown_header_lists_the_columns_and_shows_the_option(tmp_path):
    path = write_table(tmp_path / "x.csv", ["aa", "bb", "cc"], [["1", "2", "3"], ["4", "5", "6"]])
    assert fail("data", "info", path) == (
        f"Error: {path}: no column is recognized as text; the columns are 'aa', 'bb', 'cc'; "
        "name it with --text COLUMN (in Python text='COLUMN')"
    )
    assert fail("data", "info", path, "--text", "bb", "--id", "aa") == (
        f"Error: {path}: no column is recognized as the labels; the columns are 'aa', 'bb', 'cc'; "
        "name it with --labels COLUMN (in Python labels='COLUMN')"
    )


@pytest.mark.parametrize(
    "command", ["data info", "train --out m", "evaluate MODEL", "predict MODEL"]
)
def test_a_column_that_does_not_exist_gets_the_nearest_name(tmp_path, model, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    planted_table(tmp_path / "x.csv")
    args = [model if word == "MODEL" else word for word in command.split()]
    assert fail(*args, "x.csv", "--text", "mesage") == (
        "Error: x.csv: there is no column 'mesage' (--text); did you mean 'message'; "
        "the columns are 'id', 'message', 'label'"
    )


def test_columns_stand_in_a_config_file(tmp_path):
    path = planted_table(tmp_path / "x.csv", ("a", "b", "c"))
    config = tmp_path / "c.toml"
    config.write_text('model = "linear"\ntext = "b"\nlabels = "a"\ntrees = 1\n')
    train = ["train", path, "--out", tmp_path / "m", "--config", config, "--valid", "0"]
    said = succeed(*train, "--labels", "c").stderr
    assert said.startswith("Note: text: b; labels: c, one a document")


def test_two_files_with_different_columns(tmp_path):
    planted_table(tmp_path / "a1.csv")
    planted_table(tmp_path / "a2.csv", ("id", "message", "tag"))
    assert fail("data", "info", tmp_path / "a?.csv") == (
        f"Error: {tmp_path / 'a2.csv'}: there is no column 'label' (--labels); the columns are "
        f"'id', 'message', 'tag' (the first file of the split is {tmp_path / 'a1.csv'})"
    )


def test_ids_that_repeat_are_a_problem(tmp_path):
    path = write_table(tmp_path / "x.csv", ["id", "text", "labels"], [["1", "a", "x"]] * 2)
    shown = succeed("data", "info", path).stdout
    assert "1 training document (50.0 %) has an id that stands there already." in shown


# -- tables are never lines --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.csv", "x.txt", "-"])
def test_a_table_is_never_read_as_lines(tmp_path, model, name):
    """3,019 rows with line breaks once gave 7,223 results."""
    path = planted_table(tmp_path / "x", ("kol1", "kol2", "kol3"), n=90)
    if name == "-":
        result = succeed("predict", model, "-", "-k", 1, stdin=path.read_text())
    else:
        result = succeed("predict", model, path.rename(tmp_path / name), "-k", 1)
    assert len(result.stdout.splitlines()) == 90
    assert first_line(result) == "Note: text: kol2"


def test_a_table_without_names(tmp_path, model):
    path = tmp_path / "x.csv"
    path.write_text("I like beer,beer\nI like wine,wine\nbeer again,beer\n")
    assert fail("predict", model, path) == (
        f"Error: {path}:1: the first line must name the columns; got 'I like beer,beer'; put a "
        "line such as text,labels in front, or say --format text if each line is a document"
    )
    assert len(succeed("predict", model, path, "--format", "text").stdout.splitlines()) == 3


# -- labels ------------------------------------------------------------------------------------


def test_names_of_several_words_are_one_label(tmp_path):
    path = planted_table(tmp_path / "x.csv")
    shown = succeed("data", "info", path)
    assert shown.stdout.startswith("4 labels, documents as texts")
    assert "one a document, e.g. 'Technical Issue' (--separator blank splits it)" in shown.stderr
    split = succeed("data", "info", path, "--separator", "blank")
    assert split.stdout.startswith("8 labels, documents as texts")
    assert "separated by blanks, e.g. 'Technical', 'Issue'" in split.stderr


def test_tags_are_still_split_at_blanks(tmp_path):
    rows = [["a", "rna dna"], ["b", "rna"], ["c", "dna cell-biology rna"], ["d", "dna"]]
    shown = succeed("data", "info", write_table(tmp_path / "x.csv", ["text", "tags"], rows))
    assert shown.stdout.startswith("3 labels")
    assert "labels: tags, separated by blanks, e.g. 'rna', 'dna'" in shown.stderr


def test_the_separator_can_be_none(tmp_path):
    path = write_table(tmp_path / "x.csv", ["text", "labels"], [["a", "x;y"], ["b", "x"]])
    assert succeed("data", "info", path, "--separator", "none").stdout.startswith("2 labels")
    assert succeed("data", "info", path).stderr == (
        "Note: text: text; labels: labels, separated by ';', e.g. 'x', 'y'\n"
    )


# -- encodings and packing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "dialect", "said"),
    [
        (("Kennung", "Überschrift", "Schlagwörter"), {"delimiter": ";", "encoding": "cp1252"},
         "text: Überschrift; labels: Schlagwörter, one a document"),
        (("tunniste", "otsikko", "asiasanat"), {"delimiter": "\t", "encoding": "utf-16"},
         "text: otsikko; labels: asiasanat, one a document"),
        (("identifiant", "titre", "mots-clés"), {"encoding": "utf-8-sig"},
         "text: titre; labels: mots-clés, one a document"),
    ],
    ids=["cp1252", "utf-16", "utf-8-sig"],
)  # fmt: skip
def test_foreign_headers_and_encodings(tmp_path, header, dialect, said):
    path = planted_table(tmp_path / "x.csv", header, **dialect)
    shown = succeed("data", "info", path)
    assert shown.stdout.startswith("4 labels")
    assert shown.stderr.startswith(f"Note: {said}")
    encoding = dialect["encoding"]
    is_said = shown.stderr.endswith(f"id: {header[0]}; encoding: {encoding}\n")
    assert is_said == (encoding != "utf-8-sig")


def test_cp1252_is_found_out_far_behind_the_beginning(tmp_path, model):
    rows = [["plain words"]] * 20_000 + [["für “x” – 5 €"]]
    path = write_table(tmp_path / "x.csv", ["text"], rows, encoding="cp1252")
    result = succeed("predict", model, path, "-k", 1)
    assert len(result.stdout.splitlines()) == 20_001
    assert first_line(result) == "Note: text: text; encoding: cp1252"
    out = tmp_path / "y.jsonl"
    rows = [[*row, "x"] for row in rows]
    write_table(path, ["text", "labels"], rows, encoding="cp1252")
    succeed("data", "convert", path, out)
    assert json.loads(out.read_text().splitlines()[-1])["text"] == "für “x” – 5 €"


def test_another_alphabet_needs_its_name(tmp_path):
    rows = [["Привет мир", "да"], ["снова", "нет"]]
    path = write_table(tmp_path / "x.csv", ["text", "labels"], rows, encoding="cp1251")
    assert fail("data", "info", path) == (
        f"Error: {path}:2: not UTF-8: byte 0xcf; give the encoding that the file has, "
        "such as --encoding cp1252 (in Python encoding='cp1252')"
    )
    shown = succeed("data", "info", path, "--encoding", "windows-1251")
    assert "e.g. 'да'; encoding: cp1251" in shown.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--delimiter", ";;", "the delimiter must be one character, or tab. Got ';;' instead."),
        ("--encoding", "utf9", "no encoding is called 'utf9'; did you mean 'utf-8'? (known: utf-8, "
         "utf-16, cp1252, latin-1, cp1251, iso-8859-2, shift_jis, gb18030)"),
        ("--format", "cvs", "no format is called 'cvs'; did you mean 'csv'?"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing(tmp_path, option, value, message):
    path = planted_table(tmp_path / "x.csv")
    assert fail("data", "info", path, option, value) == f"Error: {message}"


# -- a model remembers its columns -------------------------------------------------------------


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Train on columns that no guess would get right: the body has more words than the head."""
    folder = tmp_path_factory.mktemp("foreign")
    path = foreign_table(folder / "train.csv", 120)
    options = ["--text", "kop,romp", "--labels", "merk", "--id", "nr", "--separator", "/"]
    train = ["train", path, "--out", folder / "m", "--model", "linear", "--valid", "0"]
    succeed(*train, *options, "--delimiter", "^")
    return folder / "m"


def foreign_table(path, n, header=("nr", "kop", "romp", "merk"), delimiter="^"):
    rows = [
        (f"n{i}", text.split()[0], " ".join(text.split()[1:]), "/".join(labels))
        for i, (text, labels) in enumerate(planted_rows(n, seed=1))
    ]
    return write_table(path, header, rows, delimiter=delimiter)


@pytest.mark.parametrize("delimiter", ["^", ";"])
def test_what_was_said_in_training_need_not_be_said_again(tmp_path, foreign, delimiter):
    path = foreign_table(tmp_path / "x.csv", 40, delimiter=delimiter)
    piped = succeed("predict", foreign, "-", stdin=path.read_text())
    assert first_line(piped) == "Note: text: kop + romp; id: nr (as in training)"
    assert json.loads(piped.stdout.splitlines()[3])["id"] == "n3"
    shown = succeed("evaluate", foreign, path, "--json", "-")
    assert first_line(shown).startswith("Note: text: kop + romp; labels: merk, separated by '/', ")
    assert first_line(shown).endswith("; id: nr (as in training)")
    assert json.loads(shown.stdout)["P@1"] > 90
    for command in ("calibrate", "update"):
        result = run(command, foreign, path, "--out", tmp_path / command)
        assert first_line(result).startswith("Note: text: kop + romp; labels: merk, ")


def test_options_win_over_what_is_remembered(tmp_path, foreign):
    path = foreign_table(tmp_path / "x.csv", 20)
    said = first_line(succeed("predict", foreign, path, "--text", "romp", "--id", "kop"))
    assert said == "Note: text: romp; id: kop"
    assert first_line(succeed("predict", foreign, path, "--text", "romp")) == (
        "Note: text: romp; id: nr (as in training)"
    )


def test_other_columns_are_guessed_anew(tmp_path, foreign):
    path = planted_table(tmp_path / "x.csv")
    assert first_line(succeed("predict", foreign, path)) == "Note: text: message; id: id"


def test_labels_need_not_be_there_to_predict(tmp_path, foreign):
    path = write_table(tmp_path / "x.csv", ["romp", "kop"], [["malt yeast brew", "hops"]] * 2)
    assert first_line(succeed("predict", foreign, path)) == (
        "Note: text: kop + romp (as in training)"
    )


def test_frames_are_read_as_in_training():
    rows = [(text, ", ".join(labels)) for text, labels in planted_rows(60, seed=2)]
    frame = {"aa": ["x y z v w u t s"] * 60, "bb": [r[0] for r in rows], "cc": [r[1] for r in rows]}
    model = longtail.Linear(trees=1).fit(frame, "cc", text="bb")
    assert model.columns_.text == ("bb",)
    assert model.columns_.separator == ","
    alone = model.predict([row[0] for row in rows], k=2)
    assert model.predict(frame, k=2).to_list() == alone.to_list()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("text", [], "columns.text must be"),
        ("text", [7], "columns.text"),
        ("delimiter", '"', "the delimiter must be one character, or tab"),
        ("delimiter", "ab", "the delimiter must be one character, or tab"),
        ("labels", 3, "columns.labels must be"),
        ("other", "x", "other"),
    ],
)
def test_columns_of_a_stranger_are_checked(tmp_path, foreign, key, value, message):
    model = longtail.load_model(foreign)
    files = model.to_files()
    files.config["columns"][key] = value
    with pytest.raises(longtail.LongtailError, match=message):
        type(model).from_files(files, "m")
