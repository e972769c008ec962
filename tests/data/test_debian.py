import gzip
import importlib.util
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from longtail.data.debian import PATH, load_debian
from longtail.data.describe import describe

SCRIPT = Path(__file__).parents[2] / "scripts" / "build_debian.py"


@pytest.fixture(scope="module")
def parts():
    return load_debian()


@pytest.fixture(scope="module")
def rows():
    with gzip.open(PATH, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build_debian", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the data -------------------------------------------------------------------------------


def test_counts(parts):
    assert (len(parts.train), len(parts.test)) == (23222, 5776)
    assert parts.train.n_labels == parts.test.n_labels == 539
    assert parts.train.label_names == parts.test.label_names
    assert "role::program" in parts.train.label_names


def test_nothing_is_empty_repeated_or_in_both_parts(parts):
    found = describe(parts)
    for part in (found.train, found.test):
        assert (part.n_empty, part.n_without_labels, part.n_duplicates) == (0, 0, 0)
    assert found.n_in_both == 0


def test_every_label_has_a_facet_and_says_something(parts):
    for name in parts.train.label_names:
        assert re.fullmatch(r"[a-z0-9-]+::[a-z0-9:.+-]+", name), name
        assert not name.startswith("special::")


def test_every_label_is_on_three_documents(rows):
    counts = Counter(label for row in rows for label in row["labels"])
    assert min(counts.values()) == 3


def test_no_source_stands_in_both_parts(rows, build):
    train, test = (
        {build.stem_of(row["source"]) for row in rows if row["part"] == part}
        for part in ("train", "test")
    )
    assert len(test) > 2000
    assert not train & test


def test_the_file_carries_no_time(rows):
    header = PATH.read_bytes()[:8]
    assert header[:2] == b"\x1f\x8b"
    assert header[4:8] == bytes(4)
    assert len(rows) == 28998


# --- the script that builds it --------------------------------------------------------------


def test_description_becomes_two_plain_lines(build):
    description = "Real-time  strategy game\n It is\n old.\n .\n   * fast\n   * free"
    assert build.split_description(description) == (
        "Real-time strategy game",
        "It is old. * fast * free",
    )
    assert build.split_description("short only") == ("short only", "")


@pytest.mark.parametrize(
    ("short", "long", "text"),
    [("a tool", "It works.", "a tool. It works."), ("Go!", "Now.", "Go! Now."), ("a", "", "a.")],
)
def test_text_is_short_then_long(build, short, long, text):
    assert build.Document("x", short, long, set()).text == text


def test_labels_lose_placeholders(build):
    field = "role::program, special::not-yet-tagged,\n devel::lang:TODO, use::TODO, use::editing"
    assert build.clean_labels(field) == {"role::program", "use::editing"}


def test_stanzas_join_continued_lines(build, monkeypatch):
    index = b"Package: a\nTag: x::y,\n z::w\nSource: s (1.0)\n\nPackage: b\nEmpty:\n\n"
    done = type("Done", (), {"stdout": index})
    monkeypatch.setattr(build.subprocess, "run", lambda *_, **__: done)
    first, second = build.read_stanzas(Path("index"))
    assert first == {"Package": "a", "Tag": "x::y,\n z::w", "Source": "s (1.0)"}
    assert build.source_of(first) == "s"
    assert second == {"Package": "b", "Empty": ""}
    assert build.source_of(second) == "b"


def test_equal_texts_become_one_document_and_transitional_packages_none(build, monkeypatch):
    stanzas = {
        "translations": [
            {"Description-md5": "1", "Description-en": "Kernel 6.1\n The kernel, version 6.1."},
            {"Description-md5": "2", "Description-en": "Kernel 6.5\n The kernel, version 6.5."},
            {"Description-md5": "3", "Description-en": "old\n A Transitional dummy package."},
        ],
        "packages": [
            {"Package": "k65", "Source": "k", "Description-md5": "2", "Tag": "role::kernel"},
            {"Package": "k61", "Source": "k", "Description-md5": "1", "Tag": "use::running"},
            {"Package": "untagged", "Description-md5": "1"},
            {"Package": "old", "Description-md5": "3", "Tag": "role::dummy"},
        ],
    }
    monkeypatch.setattr(build, "read_stanzas", lambda name: stanzas[name])
    monkeypatch.setattr(build, "MIN_DOCUMENTS", 1)
    (document,) = build.build_documents("packages", "translations")
    assert document.text == "Kernel 6.1. The kernel, version 6.1."
    assert document.labels == {"role::kernel", "use::running"}


def test_rare_labels_go_and_documents_left_without_labels_too(build):
    rows = [{"a::b"}, {"a::b"}, {"a::b", "c::d"}, {"c::d"}]
    documents = [build.Document(str(i), str(i), "", labels) for i, labels in enumerate(rows)]
    kept = build.keep_frequent(documents)
    assert [(d.source, d.labels) for d in kept] == [(str(i), {"a::b"}) for i in range(3)]


def test_versions_and_shared_descriptions_make_one_family(build):
    documents = [
        build.Document("gcc-11", "a", "compiles C", set()),
        build.Document("gcc-12", "b", "compiles C++ too", set()),
        build.Document("clang", "c", "Compiles C!", set()),
        build.Document("vim", "d", "", set()),
        build.Document("ed", "e", "", set()),
    ]
    families = build.join_families(documents)
    assert families["gcc-"] == families["clang"] == "stem clang"
    assert families["vim"] == "stem vim"
    assert families["ed"] == "stem ed"


def test_the_same_documents_give_the_same_bytes(build, tmp_path):
    documents = [build.Document(f"s{chr(97 + i)}", "é", str(i), {"b::c", "a::b"}) for i in range(9)]
    parts = build.write(documents, tmp_path / "one.gz")
    build.write(documents, tmp_path / "two.gz")
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()
    assert sum(parts.values()) == 9
    first = json.loads(gzip.decompress((tmp_path / "one.gz").read_bytes()).splitlines()[0])
    assert first["text"] == "é. 0"
    assert first["labels"] == ["a::b", "b::c"]
    assert first["source"] == "sa"
