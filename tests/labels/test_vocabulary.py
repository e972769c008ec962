"""Vocabularies: what is read from files, what labels mean, and what is refused."""

import gzip
import io
import json

import numpy as np
import pytest

from longtail.errors import DataError, ParameterError
from longtail.labels.vocabulary import AMBIGUOUS, NO_CONCEPT, Concept, Vocabulary
from longtail.labels.vocabulary_files import read_vocabulary, write_vocabulary
from longtail.runtime.store import Files

TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix dct: <http://purl.org/dc/terms/> .
@prefix ex: <http://example.org/food/> .
ex:scheme a skos:ConceptScheme ; skos:prefLabel "Food"@en .
ex:p1 a skos:Concept ; skos:prefLabel "drinks"@en, "juomat"@fi ; skos:narrower ex:p2 .
ex:p2 a skos:Concept ; skos:prefLabel "beer"@en, "olut"@fi ; skos:altLabel "ale"@en ;
    skos:related ex:p3 ; skos:notation "77" .
ex:p3 a skos:Concept ; skos:prefLabel "wine"@en ; skos:broader ex:p1 .
ex:p4 a skos:Concept ; skos:prefLabel "lager"@en ; owl:deprecated true ; dct:isReplacedBy ex:p2 .
"""

JSON_LD = {
    "@context": {"skos": "http://www.w3.org/2004/02/skos/core#"},
    "@id": "http://example.org/food/p2",
    "@type": "skos:Concept",
    "skos:prefLabel": [{"@value": "beer", "@language": "en"}],
}

EX = "http://example.org/food/"


def write(tmp_path, text, name):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def food(tmp_path):
    return read_vocabulary(write(tmp_path, TURTLE, "food.ttl"))


def test_skos_is_read_whole(food):
    assert food.uris == [f"{EX}p{i}" for i in (1, 2, 3, 4)]
    beer = list(food.concepts())[1]
    assert beer == Concept(
        f"{EX}p2",
        {"en": "beer", "fi": "olut"},
        {"en": ["ale"]},
        ["77"],
        broader=[f"{EX}p1"],
        related=[f"{EX}p3"],
    )
    assert food.broader.tolist() == [[1, 0], [2, 0]]
    assert food.replaced_by.tolist() == [-1, -1, -1, 1]


@pytest.mark.parametrize("ending", ["vocab", "vocab.gz"])
def test_our_format_gives_the_same_back(food, tmp_path, ending):
    text = io.StringIO()
    write_vocabulary(food, text)
    data = text.getvalue().encode()
    path = tmp_path / f"food.{ending}"
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    assert list(read_vocabulary(path).concepts()) == list(food.concepts())


def test_what_has_no_uri_is_no_concept(tmp_path, food):
    more = """
    ex:p2 skos:broader [ skos:prefLabel "nameless"@en ], "a literal" .
    [] a skos:Concept ; skos:prefLabel "nobody"@en ; skos:narrower ex:p3 .
    """
    found = read_vocabulary(write(tmp_path, TURTLE + more, "more.ttl"))
    assert list(found.concepts()) == list(food.concepts())


def test_json_ld(tmp_path):
    found = read_vocabulary(write(tmp_path, json.dumps(JSON_LD), "food.jsonld"))
    assert [concept.preferred for concept in found.concepts()] == [{"en": "beer"}]


def test_no_context_is_fetched(tmp_path):
    held = {**JSON_LD, "@context": "http://example.org/context.json"}
    with pytest.raises(DataError, match="which is not followed"):
        read_vocabulary(write(tmp_path, json.dumps(held), "food.jsonld"))


RDF = """<?xml version="1.0"?>
<!DOCTYPE rdf:RDF [<!ENTITY ex "http://example.org/food/">%s]>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"
         xmlns:skos="http://www.w3.org/2004/02/skos/core#">
  <skos:Concept rdf:about="&ex;p2"><skos:prefLabel>beer</skos:prefLabel></skos:Concept>
</rdf:RDF>
"""


def test_entities_for_namespaces_are_fine(tmp_path):
    assert read_vocabulary(write(tmp_path, RDF % "", "food.rdf")).uris == [f"{EX}p2"]


@pytest.mark.parametrize(
    "entity",
    [
        '<!ENTITY x SYSTEM "file:///etc/passwd">',
        '<!ENTITY x "&ex;&ex;&ex;&ex;">',
        f'<!ENTITY x "{"a" * 201}">',
        '<!ENTITY % x "y">',
    ],
)
def test_entities_that_open_files_or_grow_are_refused(tmp_path, entity):
    with pytest.raises(DataError, match="its entity 'x' is not plain text of up to 200 characters"):
        read_vocabulary(write(tmp_path, RDF % entity, "food.rdf"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", f"<{EX}p2>\tbeer\ten\n<{EX}p2>\tolut\tfi\n<{EX}p3>\twine\ten\n"),
        ("a.csv", f"uri,label,language\n{EX}p2,beer,en\n{EX}p2,olut,fi\n{EX}p3,wine,en\n"),
        ("a.csv", f"uri,notation,label_en,label_fi\n{EX}p2,77,beer,olut\n{EX}p3,,wine,\n"),
    ],
)
def test_tables(tmp_path, name, text):
    found = read_vocabulary(write(tmp_path, text, name))
    assert [concept.preferred for concept in found.concepts()] == [
        {"en": "beer", "fi": "olut"},
        {"en": "wine"},
    ]


def test_lists(tmp_path):
    found = read_vocabulary(write(tmp_path, "beer\nwine, red\nbeer\n", "a.txt"))
    assert found.uris == ["beer", "wine, red"]
    assert found.preferred() == ["beer", "wine, red"]


def test_labels_are_matched_by_uri_code_and_name(food):
    labels = [f"{EX}p2", f"<{EX}p2>", "p2", "77", "beer", "olut", "ale", "lager", "nothing"]
    matched = food.match(labels)
    assert matched.concepts.tolist() == [1] * 8 + [NO_CONCEPT]
    assert matched.replaced == {"lager": f"{EX}p2"}


def test_the_uris_of_the_data_come_first(food):
    assert food.match(["beer"], {"beer": f"{EX}p3"}).concepts.tolist() == [2]


def test_a_name_of_two_concepts_is_not_guessed():
    same = {"en": "bass"}
    found = Vocabulary.build([Concept("a", same), Concept("b", same)])
    labels = ["bass", "a", "bass [a]", "bass <b>", "bass [c]", "tuna [sea]"]
    meant = [AMBIGUOUS, 0, 0, 1, NO_CONCEPT, NO_CONCEPT]
    assert found.match(labels).concepts.tolist() == meant
    assert "1 preferred names in the language 'en' belong to several" in found.find_problems()[0]
    old = Vocabulary.build([Concept("a", same, deprecated=True), Concept("b", same)])
    assert old.match(["bass"]).concepts.tolist() == [1]


@pytest.mark.parametrize("live", [0, 1, 2])
def test_a_name_means_the_one_concept_that_is_not_deprecated_in_any_order(live):
    named = {"en": "bass"}
    concepts = [Concept(str(i), named, deprecated=i != live) for i in range(3)]
    assert Vocabulary.build(concepts).find("bass") == live
    concepts.append(Concept("3", named))
    assert Vocabulary.build(concepts).find("bass") == AMBIGUOUS


def test_cycles_are_said_and_end():
    found = Vocabulary.build(
        [
            Concept("a", broader=["b"], replaced_by="b"),
            Concept("b", broader=["a"], replaced_by="a"),
            Concept("c", replaced_by="d"),
            Concept("d", replaced_by="e"),
            Concept("e"),
        ]
    )
    replaced, cycle = found.find_problems()
    assert "2 concepts are replaced by one another in a circle, such as <a>" in replaced
    assert "has a cycle: 'a' above 'b' above 'a'" in cycle
    assert found.match(["a", "b", "c"]).concepts.tolist() == [0, 1, 4]


def test_a_language_that_no_name_is_in(food):
    with pytest.raises(ParameterError, match="in the language 'sv'; there are: en, fi"):
        food.preferred("sv")
    assert food.preferred("fi") == ["juomat", "olut", None, None]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "\n", "the file is empty"),
        ("a.ttl", "# nothing", "holds no concept"),
        ("a.jsonl", '{"text": "a", "labels": ["b"]}\n', "is no list of names, by its first line"),
        ("a.txt", "@prefix skos: <http://x> .\n", "a SKOS file must end in .ttl, "),
        ("a.ttl", "this is no turtle", "is not a vocabulary in turtle"),
        ("a.jsonld", "{", "is not a vocabulary in json-ld"),
        ("a.csv", "code,votes\n1,2\n", "has neither a column 'uri' nor 'label'"),
        ("a.tsv", "a\tb\n\t\tc\n", "a line must hold a URI and a name"),
        ("a.csv", 'uri,label\n"a,b\n', "is not a readable table"),
        ("a.vocab", '{"longtail_vocabulary": 2}\n', "is a vocabulary of version 2"),
        ("a.vocab", '{"longtail_vocabulary": 1, "concepts": 2}\n{"uri": "a"}\n', "holds 1"),
        ("a.vocab", '{"longtail_vocabulary": 1, "concepts": 1}\n{"uri": 1}\n', "'uri' is not of"),
        ("a.vocab", '{"longtail_vocabulary": 1, "concepts": 1}\n{"x": 1}\n', "has no 'x'"),
        ("a.vocab", '{"longtail_vocabulary": 1, "concepts": 1}\n{}\n', "must have a uri"),
        (
            "a.vocab",
            '{"longtail_vocabulary": 1, "concepts": 2}\n{"uri": "a"}\n{"uri": "a"}\n',
            ":3: the concept <a> is there twice",
        ),
    ],
)
def test_broken_files(tmp_path, name, text, message):
    with pytest.raises(DataError, match=message):
        read_vocabulary(write(tmp_path, text, name))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_vocabulary(tmp_path / "none.ttl")


def test_it_travels_in_a_model_folder(food):
    files = Files()
    food.add_to_files(files)
    Vocabulary.describe().check(files, {})
    assert list(Vocabulary.from_files(files).concepts()) == list(food.concepts())
    files.arrays["concepts.replaced_by"] = np.array([0, 1, 2, 4], np.int32)
    with pytest.raises(ValueError, match="numbers of concepts, or -1"):
        Vocabulary.describe().check(files, {})
