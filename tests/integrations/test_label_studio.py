"""Label Studio's configurations, predictions and annotations, as its documentation shows them."""

import pytest

from longtail.errors import DataError
from longtail.integrations.label_studio import Control

CHOICES = """
<View>
  <Text name="text" value="$body"/>
  <Choices name="topic" toName="text" choice="multiple" showInLine="true">
    <View><Choice value="beer"/><Choice value="Chess game" alias="chess"/></View>
  </Choices>
</View>
"""
TAXONOMY = """
<View>
  <Text name="text" value="$text"/>
  <Taxonomy name="taxonomy" toName="text">
    <Choice value="Archaea" />
    <Choice value="Eukarya">
      <Choice value="Human" />
      <Choice value="Opossum" alias="opossum" />
    </Choice>
  </Taxonomy>
</View>
"""


def labels(*names):
    return [{"label": name, "score": 0.9 - 0.2 * i} for i, name in enumerate(names)]


def test_choices_become_a_prediction():
    control = Control.read(CHOICES)
    assert (control.name, control.of, control.text) == ("topic", "text", "body")
    assert not control.single
    found = control.write(labels("chess", "unknown", "beer"), "v1")
    assert found == {
        "model_version": "v1",
        "score": pytest.approx(0.7),
        "result": [
            {
                "from_name": "topic",
                "to_name": "text",
                "type": "choices",
                "value": {"choices": ["chess", "beer"]},
            }
        ],
    }
    assert control.write(labels("Chess game"), "v1")["result"][0]["value"] == {"choices": ["chess"]}
    nothing = {"model_version": "v1", "score": 0.0, "result": []}
    assert control.write(labels("unknown"), "v1") == nothing


def test_a_single_choice_is_the_best():
    control = Control.read(CHOICES.replace('choice="multiple"', 'choice="single-radio"'))
    found = control.write(labels("unknown", "beer", "chess"), "v1")
    assert found["result"][0]["value"] == {"choices": ["beer"]}
    assert found["score"] == pytest.approx(0.7)


def test_a_taxonomy_gives_the_whole_path():
    control = Control.read(TAXONOMY)
    found = control.write(labels("Human", "Opossum", "Archaea"), "v1")
    value = found["result"][0]["value"]["taxonomy"]
    assert value == [["Eukarya", "Human"], ["Eukarya", "opossum"], ["Archaea"]]
    annotation = {
        "result": [{"from_name": "taxonomy", "type": "taxonomy", "value": {"taxonomy": value}}]
    }
    assert control.read_labels(annotation, {"Human"}) == ["Human", "Opossum", "Archaea"]
    assert control.read_labels(annotation, {"opossum"}) == ["Human", "opossum", "Archaea"]


def test_a_taxonomy_from_elsewhere_takes_any_label():
    config = """<View><Text name="t" value="$text"/>
        <Taxonomy name="x" toName="t" apiUrl="https://example.com/labels.json"/></View>"""
    found = Control.read(config).write(labels("beer", "chess"), "v1")
    assert found["result"][0]["value"] == {"taxonomy": [["beer"], ["chess"]]}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ({"result": [{"from_name": "topic", "value": {"choices": ["beer"]}}]}, ["beer"]),
        ({"result": [{"from_name": "other", "value": {"choices": ["beer"]}}]}, []),
        ({"result": [{"from_name": "topic", "value": {"choices": [7, "", "beer"]}}]}, ["beer"]),
        ({"result": [{"from_name": "topic", "value": "beer"}, "odd"]}, []),
        ({"result": [], "was_cancelled": True}, None),
        ({}, None),
        ("odd", None),
    ],
)
def test_annotations(annotation, expected):
    assert Control.read(CHOICES).read_labels(annotation, {"beer", "chess"}) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("<View>", "the labeling configuration is not XML: no element found"),
        ("\ud800", "the labeling configuration is not XML"),
        ("<View/>", r"has no Choices or Taxonomy for a Text with value=\$field"),
        (CHOICES.replace('toName="text"', 'toName="image"'), "has no Choices or Taxonomy"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "must not declare a document type"),
        (CHOICES.replace('value="$body"', 'value="$body" valueType="url"'), "are not followed"),
    ],
)
def test_configurations_that_do_not_do(config, message):
    with pytest.raises(DataError, match=message):
        Control.read(config)


def test_a_task_without_text():
    with pytest.raises(DataError, match="task 3: its data has no text 'body'"):
        Control.read(CHOICES).read_text({"data": {"text": "x"}}, 3)


def test_very_deep_configurations():
    deep = "<View>" * 50_000 + "</View>" * 50_000
    with pytest.raises(DataError, match="has no Choices"):
        Control.read(deep)
