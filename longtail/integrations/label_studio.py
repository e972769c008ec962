"""Label Studio: what its projects ask for, and what its annotations say, in our words.

A project has a labeling configuration in XML. The first tag `Choices` or `Taxonomy` that belongs to
a text is what labels go into:

    <View>
      <Text name="text" value="$body"/>
      <Choices name="topic" toName="text" choice="multiple">
        <Choice value="beer"/> <Choice value="chess"/>
      </Choices>
    </View>

Labels are matched by the value or the alias of a choice; those that the project does not list are
left out. A taxonomy without choices (its labels come from an `apiUrl`) takes all labels.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from longtail.errors import DataError

CONTROLS = {"choices": "choices", "taxonomy": "taxonomy"}  # tags, and what results call them
TEXTS = ("text", "hypertext")  # tags of documents
Path = tuple[str, ...]  # of a choice in a taxonomy; of `Choices`, one name


@dataclass(frozen=True)
class Control:
    """Where labels go.

    Attributes:
        name: of the tag that takes labels.
        of: the name of the tag with the text.
        kind: "choices" or "taxonomy".
        text: the field of a task that holds the text.
        single: whether a document has one label only.
        paths: what a label is in an annotation, by its value and its alias; empty takes any.
        values: the value of each such path.
    """

    name: str
    of: str
    kind: str
    text: str
    single: bool
    paths: Mapping[str, Path] = field(default_factory=dict)
    values: Mapping[Path, str] = field(default_factory=dict)

    @classmethod
    def read(cls, config: str) -> "Control":
        """Read a labeling configuration; DataError if no labels of a text are asked for."""
        root = _parse(config)
        texts = {
            tag.get("name"): tag
            for tag in root.iter()
            if tag.tag.lower() in TEXTS and (tag.get("value") or "").startswith("$")
        }
        for tag in root.iter():
            of, kind = tag.get("toName"), CONTROLS.get(tag.tag.lower())
            if kind is None or of not in texts or not tag.get("name"):
                continue
            if (texts[of].get("valueType") or "text").lower() == "url":
                raise DataError(
                    "the labeling configuration names addresses of texts (valueType=url), which "
                    "are not followed; put the texts themselves into the tasks"
                )
            one = kind == "choices" and (tag.get("choice") or "single").startswith("single")
            choices = list(_walk(tag))
            return cls(
                name=tag.get("name") or "",
                of=of or "",
                kind=kind,
                text=(texts[of].get("value") or "")[1:],
                single=one or tag.get("maxUsages") == "1",
                paths={name: path for path, names in reversed(choices) for name in reversed(names)},
                values={path: names[0] for path, names in choices},
            )
        raise DataError(
            "the labeling configuration has no Choices or Taxonomy for a Text with value=$field"
        )

    def read_text(self, task: Mapping[str, Any], number: int) -> str:
        """Return the text of a task."""
        data = task.get("data")
        found = data.get(self.text) if isinstance(data, dict) else None
        if not isinstance(found, str):
            raise DataError(f"task {number}: its data has no text '{self.text}'")
        return found

    # -- predictions ----------------------------------------------------------------------------

    def write(self, labels: Sequence[Mapping[str, Any]], version: str) -> dict[str, Any]:
        """Return a document's labels, best first, as a prediction; those that are not asked for go.

        Its score is the mean of theirs, so that Label Studio can put the least sure tasks first.
        """
        known = [
            (self.paths.get(each["label"], (each["label"],)), float(each["score"]))
            for each in labels
            if not self.paths or each["label"] in self.paths
        ]
        given = known[:1] if self.single else known
        paths = list(dict.fromkeys(path for path, _ in given))
        whole = self.kind == "taxonomy"
        value = [list(path) if whole else path[-1] for path in paths]
        result = {
            "from_name": self.name,
            "to_name": self.of,
            "type": self.kind,
            "value": {self.kind: value},
        }
        score = sum(score for _, score in given) / len(given) if given else 0.0
        return {"model_version": version, "score": score, "result": [result] if given else []}

    # -- annotations ----------------------------------------------------------------------------

    def read_labels(self, annotation: Any, known: Collection[str]) -> list[str] | None:
        """Return the labels of an annotation; None if it was skipped or is none.

        Args:
            annotation: with the `result` that a person left.
            known: the labels of the model, which the alias of a choice may be one of.
        """
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            return None
        results = annotation.get("result")
        if not isinstance(results, list):
            return None
        paths = [
            path
            for each in results
            if isinstance(each, dict) and each.get("from_name") == self.name
            for path in self._paths_of(each.get("value"))
        ]
        return list(dict.fromkeys(self._name(path, known) for path in paths))

    def _paths_of(self, value: Any) -> Iterator[Path]:
        chosen = value.get(self.kind) if isinstance(value, dict) else None
        for each in chosen if isinstance(chosen, list) else ():
            path = each if isinstance(each, list) else [each]
            if path and all(isinstance(part, str) and part for part in path):
                yield tuple(path)

    def _name(self, path: Path, known: Collection[str]) -> str:
        value = self.values.get(path, path[-1])
        return path[-1] if value not in known and path[-1] in known else value


def _parse(config: str) -> ElementTree.Element:
    """Return the tags of a configuration; nothing in it is looked up anywhere."""
    if "<!DOCTYPE" in config:
        raise DataError("the labeling configuration must not declare a document type")
    try:
        return ElementTree.fromstring(config)
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"the labeling configuration is not XML: {error}") from None


def _walk(tag: ElementTree.Element) -> Iterator[tuple[Path, list[str]]]:
    """Yield the path of each choice in annotations, with its value and its alias if it has one."""
    waiting: list[tuple[ElementTree.Element, Path]] = [(tag, ())]
    while waiting:
        held, above = waiting.pop()
        inner: list[tuple[ElementTree.Element, Path]] = []
        for child in held:
            value = child.get("value") if child.tag.lower() == "choice" else None
            if value is None:  # such as a View that groups choices
                inner.append((child, above))
                continue
            alias = child.get("alias")
            path = (*above, alias or value)
            yield path, [value, alias] if alias else [value]
            inner.append((child, path))
        waiting.extend(reversed(inner))
