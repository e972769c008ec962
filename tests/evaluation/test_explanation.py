"""Explanations: where words stand, how dark they are, and that no text can break the page."""

import numpy as np
import pytest

from longtail.evaluation.explanation import (
    Explanation,
    Neighbour,
    Term,
    Vote,
    explain_terms,
    get_color,
    word_columns,
)
from longtail.text.tfidf import Tfidf


def make(text, weights, label=None, **settings):
    features = Tfidf(**settings).fit([text, text])
    columns = features.transform([text]).indices
    names = features.feature_names_
    return explain_terms(
        text, label, features, columns, np.array([weights.get(names[c], 0.0) for c in columns])
    )


def test_weights_are_shares_and_the_heaviest_comes_first():
    found = make("red wine, white wine", {"red": 1, "wine": -3}, ngrams=1)
    assert [(term.name, term.weight) for term in found.terms] == [
        ("wine", -0.75),
        ("red", 0.25),
        ("white", 0.0),
        ("whit…", 0.0),
    ]
    assert found.terms[0].spans == ((4, 8), (16, 20))


def test_shades_cut_the_text_and_lose_nothing():
    text = "Red wine,\nwhite wine"
    found = make(text, {"red": 1, "wine": 2}, ngrams=1)
    pieces = found.shades()
    assert "".join(piece for piece, _ in pieces) == text
    assert pieces[0] == ("Red", 0.5)
    assert pieces[2] == ("wine", 1.0)
    assert pieces[-1] == ("wine", 1.0)


def test_a_pair_shades_both_of_its_words():
    found = make("red wine", {"red wine": 3, "red": 1}, ngrams=2)
    assert found.shades() == [("Red".lower(), 1.0), (" wine", 0.75)]


@pytest.mark.parametrize(
    "text",
    ["Ka\u0308se und Wein", "Käse und Wein", "İstanbul Wein", "C# und C++ Wein", "ΟΔΟΣ Wein"],
)
def test_words_are_found_where_they_stand_whatever_became_of_them(text):
    found = make(text, {"wein": 1}, ngrams=1)
    assert all(term.spans for term in found.terms)
    wein = next(term for term in found.terms if term.name == "wein")
    assert [text[a:b] for a, b in wein.spans] == ["Wein"]


def test_every_term_of_a_text_is_located():
    texts = ["the red wine and the red beer", "beer++ and C#, wine_2 Ärger 東京 red wine"]
    features = Tfidf(ngrams=2, min_pair_df=1).fit(texts)
    for text in texts:
        places = features.locate(text)
        assert sorted(places) == sorted(features.transform([text]).indices.tolist())
        for term, spans in places.items():
            for start, end in spans:
                said = text[start:end].lower().replace(",", "")
                assert said == features.feature_names_[term]


def test_rows_have_numbered_features():
    found = explain_terms(None, "beer", None, np.array([3, 8]), np.array([1.0, 1.0]))
    assert [term.name for term in found.terms] == ["feature 3", "feature 8"]
    assert found.shades() == []
    assert found.label == "beer"


def test_nothing_known_and_nothing_heavy():
    assert explain_terms("x", None, None, np.array([], int), np.array([])).terms == []
    found = Explanation("a b", None, [Term("a", 0.0, ((0, 1),))])
    assert found.shades() == [("a b", 0.0)]


def test_as_data():
    found = Explanation("ale", "beer", [Term("ale", 1.0, ((0, 3),))], {"linear": 0.5})
    expected = {
        "text": "ale",
        "label": "beer",
        "terms": [{"term": "ale", "weight": 1.0, "spans": ((0, 3),)}],
        "members": {"linear": 0.5},
    }
    rest = {key: value for key, value in found.to_dict().items() if key not in expected}
    assert found.to_dict() == {**expected, **rest}
    assert not any(rest.values())
    near = Explanation("ale", None, [], neighbours=[Neighbour(3, 0.5, ("beer",), "an ale")])
    assert near.to_dict()["neighbours"] == [
        {"number": 3, "similarity": 0.5, "labels": ("beer",), "text": "an ale"}
    ]


def test_attention_says_where_the_model_looked_and_what_a_label_loses():
    terms = [Term("ale", 0.9, ((0, 3),), 0.25), Term("dark", 0.1, ((4, 8),), -0.125)]
    found = Explanation("ale dark", "beer", terms, is_attention=True)
    assert found.heading == "Where the model looked for beer"
    assert found.to_dict()["terms"][1]["loss"] == -0.125
    assert word_columns(terms) == (
        ["word", "looked at", "lost without it"],
        [("ale", "0.900", "0.250"), ("dark", "0.100", "-0.125")],
    )
    page = found.to_html()
    assert "<h1>Where the model looked for beer</h1>" in page
    assert "lost without it" in page
    assert "against" not in page
    others = Explanation("ale", "beer", [Term("ale", 1.0)])
    assert others.heading == "What speaks for and against beer"
    assert word_columns(others.terms)[0] == ["word", "weight"]


def test_the_page_names_the_neighbours():
    near = Explanation("ale", None, [], neighbours=[Neighbour(3, 0.5, ("<beer>",), "an & ale")])
    page = near.to_html()
    assert "<td>0.50</td><td>&lt;beer&gt;</td><td>an &amp; ale</td>" in page
    assert "<th>word</th>" not in page


def test_the_page_is_whole_and_escapes_what_it_is_given():
    text = "<script>alert('x')</script> & \"wine\" {0} {{7*7}} {% raw %}"
    vote = Vote("<s>", "<b>{{7*7}}", 1, 0.5, 2.0)
    terms = [Term("<i>", 1.0, ((0, 8),))]
    found = Explanation(text, "<b>label</b>", terms, votes=[vote], member_terms={"<s>": terms})
    page = found.to_html([{"label": "<u>", "score": 0.5}])
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<u>" not in page
    assert "<s>" not in page
    assert page.count("{{7*7}}") == 2
    assert "{% raw %}" in page
    assert "script-src 'none'" in page
    assert "&lt;u&gt; 0.50" in page
    assert '<mark class="c-ff8c00">&lt;script&gt;</mark>alert(&#39;x&#39;)' in page
    assert ".c-ff8c00 { background: #ff8c00; }" in page
    assert "http:" not in page
    assert "https:" not in page


def test_darker_is_heavier_and_against_is_another_color():
    assert get_color(0.0) == (255, 255, 255)
    assert sum(get_color(0.2)) > sum(get_color(0.9))
    assert get_color(1.0) == (255, 140, 0)
    assert get_color(-1.0) == (70, 130, 200)
