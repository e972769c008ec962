"""Annif's corpora as they are: TSV, CSV, JSON lines, and folders of full texts."""

import gzip
import io

import pytest
from planted import pairs

from longtail.data import load, read_batches
from longtail.errors import DataError

TSV = "pale ale\t<http://yso/p1> <http://yso/p2>\nred, white wine\thttp://yso/p3\nnothing\t\n"
BEER, ALE, WINE = "http://yso/p1", "http://yso/p2", "http://yso/p3"


def write_full_texts(folder):
    folder.mkdir(parents=True)
    (folder / "d1.txt").write_text("pale ale\nin a pub\n")
    (folder / "d1.tsv").write_text(f"<{BEER}>\tbeer\n<{ALE}>\tale\n")
    (folder / "d2.txt").write_text("wine")
    (folder / "d2.key").write_text("red wine\nwhite wine\n")
    (folder / "d3.txt").write_text("")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_tsv(tmp_path, pack):
    lines = TSV + "more\t<http://yso/p1>\n" * 30
    (tmp_path / "corpus.tsv").write_bytes(pack(lines.encode()))
    data = load(tmp_path / "corpus.tsv").train
    assert pairs(data)[:3] == [
        ("pale ale", [BEER, ALE]),
        ("red, white wine", [WINE]),
        ("nothing", []),
    ]
    assert data.label_uris == {uri: uri for uri in (BEER, ALE, WINE)}
    (batch,) = read_batches(io.BytesIO(lines.encode()))
    assert batch.texts[:3] == ["pale ale", "red, white wine", "nothing"]


def test_names_beside_a_tsv_keep_the_uris(tmp_path):
    (tmp_path / "train.tsv").write_text("a\t<http://yso/p1>\nb\t<http://yso/p3>\n")
    (tmp_path / "label_names.tsv").write_text(f"{BEER}\tbeer\n{ALE}\tale\n")
    data = load(tmp_path).train
    assert pairs(data) == [("a", ["beer"]), ("b", [WINE])]
    assert data.label_uris == {"beer": BEER, WINE: WINE}


def test_a_line_without_uris(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("a\t<http://yso/p1>\n" * 50 + "b\tbeer\n")
    with pytest.raises(DataError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}:51: behind the tab stand URIs with blanks between them; got 'beer'"
    )


def test_csv(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(
        f"document_id,text,subject_uris\nd1,pale ale,<{BEER}> <{ALE}>\nd2,wine,<{WINE}>\n"
    )
    data = load(path).train
    assert pairs(data) == [("pale ale", [BEER, ALE]), ("wine", [WINE])]
    assert data.ids == ["d1", "d2"]


def test_json_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"document_id": "d1", "text": "pale ale", "subjects": '
        f'[{{"uri": "{BEER}", "label": "beer"}}, {{"label": "pub"}}]}}\n'
        f'{{"metadata": {{"title": "wine"}}, "subjects": [{{"uri": "{WINE}"}}]}}\n'
        f'{{"text": "other", "subjects": [{{"uri": "{ALE}", "label": "beer"}}]}}\n'
    )
    data = load(path).train
    assert pairs(data) == [
        ("pale ale", ["beer", "pub"]),
        ("wine", [WINE]),
        ("other", [f"beer <{ALE}>"]),  # another concept of the same name
    ]
    assert data.ids == ["d1", "", ""]
    assert data.label_uris == {"beer": BEER, WINE: WINE, f"beer <{ALE}>": ALE}
    path.write_text('{"text": "a", "subjects": [{"name": "x"}]}\n')
    with pytest.raises(DataError, match=r"x.jsonl:1: a label that is an object must be"):
        load(path)


def test_folders_of_full_texts(tmp_path):
    write_full_texts(tmp_path / "corpus")
    train, test = load(tmp_path / "corpus")
    assert pairs(train) == [
        ("pale ale\nin a pub", ["ale", "beer"]),
        ("wine", ["red wine", "white wine"]),
        ("", []),
    ]
    assert (train.ids, test) == (["d1", "d2", "d3"], None)
    assert train.label_uris == {"beer": BEER, "ale": ALE}
    (batch,) = read_batches(tmp_path / "corpus")
    assert (batch.texts, batch.ids) == (train.texts, train.ids)


def test_full_texts_of_blanks_are_empty_documents(tmp_path):
    write_full_texts(tmp_path / "corpus")
    (tmp_path / "corpus" / "d1.txt").write_text(" \n\n")
    (tmp_path / "corpus" / "d2.key").write_text("\n")
    train = load(tmp_path / "corpus").train
    assert pairs(train) == [("", ["ale", "beer"]), ("wine", []), ("", [])]


def test_folders_of_full_texts_for_training_and_testing(tmp_path):
    for role in ("train", "test"):
        write_full_texts(tmp_path / "corpus" / role)
    train, test = load(tmp_path / "corpus")
    assert pairs(train) == pairs(test)
    assert train.label_names == test.label_names
