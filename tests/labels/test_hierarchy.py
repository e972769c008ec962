"""Hierarchy files, good and broken, and the label graph that they make."""

import builtins
import gzip
import itertools

import numpy as np
import pytest

from longtail.errors import DataError, MissingExtraError
from longtail.labels.cycles import find_cycle
from longtail.labels.hierarchy import link_labels, read_hierarchy

LABELS = ["beer", "wine", "drinks", "bread"]

TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix ex: <http://example.org/food/> .
ex:p1 skos:prefLabel "drinks"@en, "juomat"@fi ; skos:narrower ex:p2 .
ex:p2 skos:prefLabel "beer"@en .
ex:wine skos:broader ex:p1 ; skos:notation "77" .
ex:p9 skos:prefLabel "bread"@en .
"""

RDF = """<?xml version="1.0"?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"
         xmlns:skos="http://www.w3.org/2004/02/skos/core#">
  <skos:Concept rdf:about="http://example.org/food#beer">
    <skos:broader rdf:resource="http://example.org/food#drinks"/>
  </skos:Concept>
</rdf:RDF>
"""


def write(tmp_path, text, name="pairs.tsv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def edges(graph):
    return {
        (label, int(other))
        for label in range(graph.n_labels)
        for other in graph.ends[graph.start[label] : graph.start[label + 1]]
    }


def test_parents_and_children_by_name(tmp_path):
    path = write(tmp_path, "drinks\tbeer\ndrinks\twine\n\nfood\tdrinks\nfood\tbread\n")
    graph = link_labels(path, LABELS)
    assert graph.n_labels == 5  # food is no label, but joins two that are
    assert edges(graph) == {
        pair
        for one, other in [(2, 0), (2, 1), (4, 2), (4, 3)]
        for pair in ((one, other), (other, one))
    }


@pytest.mark.parametrize("separator", [";", "|", ",", " "])
def test_other_separators(tmp_path, separator):
    path = write(tmp_path, f"drinks{separator}beer\n")
    assert edges(link_labels(path, LABELS)) == {(0, 2), (2, 0)}


def test_names_with_blanks_and_commas_need_tabs(tmp_path):
    path = write(tmp_path, "food, all kinds\tfresh bread\n")
    assert read_hierarchy(path).names == [["food, all kinds"], ["fresh bread"]]


def test_a_gzipped_file(tmp_path):
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(gzip.compress(b"drinks\tbeer\n"))
    assert edges(link_labels(path, LABELS)) == {(0, 2), (2, 0)}


def test_what_is_known_is_said(tmp_path):
    class Notes:
        texts: tuple[str, ...] = ()

        def stage(self, name, total): ...

        def advance(self, amount): ...

        def note(self, text):
            self.texts += (text,)

    notes = Notes()
    link_labels(write(tmp_path, "drinks\tbeer\ndrinks\tmead\n"), LABELS, notes)
    assert notes.texts == ("2 of 4 labels are in the hierarchy; 1 of its names are no labels",)


def test_a_vocabulary_in_turtle(tmp_path):
    pytest.importorskip("rdflib")
    graph = link_labels(write(tmp_path, TURTLE, "food.ttl"), LABELS)
    assert edges(graph) == {(0, 2), (2, 0), (1, 2), (2, 1)}
    assert edges(link_labels(write(tmp_path, TURTLE, "food.ttl"), ["77", "juomat"])) == {
        (0, 1),
        (1, 0),
        (1, 2),
        (2, 1),
    }


def test_a_vocabulary_in_rdf_xml(tmp_path):
    pytest.importorskip("rdflib")
    assert edges(link_labels(write(tmp_path, RDF, "food.rdf"), LABELS)) == {(0, 2), (2, 0)}
    by_address = ["http://example.org/food#drinks", "http://example.org/food#beer"]
    assert edges(link_labels(write(tmp_path, RDF, "food.rdf"), by_address)) == {(0, 1), (1, 0)}


def message(path, call=read_hierarchy, *more):
    with pytest.raises(DataError) as caught:
        call(path, *more)
    return str(caught.value).replace(str(path), "FILE")


def test_a_missing_file_and_a_folder(tmp_path):
    assert message(tmp_path / "nope.tsv") == "FILE: there is no such hierarchy file"
    assert message(tmp_path) == "FILE: is a folder; a hierarchy is one file"


def test_a_line_that_is_no_pair(tmp_path):
    path = write(tmp_path, "drinks\tbeer\nwine\n")
    assert message(path) == (
        "FILE:2: a line must hold a parent and a child, separated by a tab; got 'wine'"
    )
    assert "got 'a\\tb\\tc'" in message(write(tmp_path, "a\tb\tc\n"))
    assert "got 'a\\t'" in message(write(tmp_path, "a\t\n"))


def test_an_empty_file(tmp_path):
    assert message(write(tmp_path, "\n\n")) == "FILE: the file is empty"


def test_cycles(tmp_path):
    path = write(tmp_path, "top\tdrinks\ndrinks\tbeer\nbeer\tale\nale\tdrinks\n")
    assert message(path) == ("FILE: has a cycle: 'drinks' above 'beer' above 'ale' above 'drinks'")
    path = write(tmp_path, "beer\tbeer\n")
    assert message(path) == "FILE: has a cycle: 'beer' above 'beer'"
    long = "".join(f"n{i}\tn{(i + 1) % 50}\n" for i in range(50))
    assert message(write(tmp_path, long)).count("above") == 5


def test_a_cycle_is_found_among_many_nodes():
    rng = np.random.default_rng(0)
    down = np.sort(rng.choice(1000, (3000, 2)), axis=1)
    down = down[down[:, 0] != down[:, 1]]
    assert find_cycle(down, 1000) == []
    closed = np.vstack([down, down[0][::-1]])
    cycle = find_cycle(closed, 1000)
    assert cycle[0] == cycle[-1]
    pairs = {tuple(pair) for pair in closed.tolist()}
    assert all(step in pairs for step in itertools.pairwise(cycle))


def test_two_labels_may_share_a_parent_twice(tmp_path):
    path = write(tmp_path, "a\tb\na\tb\na\tc\nb\td\nc\td\n")  # no cycle, although d has two
    assert len(read_hierarchy(path).names) == 4


def test_no_name_is_a_label(tmp_path):
    path = write(tmp_path, "Drinks\tBeer\n")
    assert message(path, link_labels, LABELS) == (
        "FILE: none of its 2 names is a label of the data; it names 'Drinks', the data 'beer'"
        "; did you mean 'drinks'?"
    )


def test_a_file_that_is_no_turtle(tmp_path):
    pytest.importorskip("rdflib")
    assert message(write(tmp_path, "drinks\tbeer\n", "food.ttl")).startswith(
        "FILE: is not a vocabulary in turtle: "
    )
    assert message(write(tmp_path, "<rdf", "food.rdf")).startswith(
        "FILE: is not a vocabulary in xml: "
    )


def test_a_vocabulary_without_broader(tmp_path):
    pytest.importorskip("rdflib")
    text = '<http://e.org/a> <http://www.w3.org/2004/02/skos/core#prefLabel> "a" .'
    assert message(write(tmp_path, text, "food.ttl")) == "FILE: holds no parent and child"


def test_without_rdflib_the_command_is_named(tmp_path, monkeypatch):
    true_import = builtins.__import__

    def no_rdflib(name, *args, **kwargs):
        if name.startswith("rdflib"):
            raise ImportError(name)
        return true_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_rdflib)
    with pytest.raises(MissingExtraError) as caught:
        read_hierarchy(write(tmp_path, TURTLE, "food.ttl"))
    assert str(caught.value) == (
        "Reading a SKOS vocabulary needs rdflib, which is not installed; "
        "install it with: pip install '.[skos]'"
        ", in the folder with longtail's source"
    )
