"""A data set that hardly any constant was tuned on: Debian's packages, and what they depend on.

    python -m bench.dependencies OUT [--least 2]

Asks the `apt-cache` of a Debian machine (or a relative) for all packages it knows; long
descriptions are there after `apt-get -o Acquire::Languages=en update`. A document is a package's
name and description; its labels are the packages that it depends on, the first of alternatives,
which at least `--least` packages need. OUT gets `train.jsonl` and `test.jsonl`: a fifth of the
packages, by MD5 of the name, is test. Debian 12 makes some 54,700 documents with 17,900 labels, of
which half are on three documents or fewer, and one is on two in five.

With that set, `python -m bench --data PARENT_OF_OUT` and `longtail compare` say whether what was
tuned on other sets holds.
"""

import argparse
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import md5
from pathlib import Path
from typing import NamedTuple

ASKED = 2000  # packages, at a time
NAME = re.compile(r"\s*([a-z0-9][a-z0-9+.-]+)")
TEST_ONE_IN = 5


class Document(NamedTuple):
    """Something with a name of its own, what it says of itself, and what it is labelled by."""

    name: str
    text: str
    labels: list[str]


def main(arguments: list[str] | None = None) -> None:
    """Ask for the packages and write the two splits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--least", type=int, default=2, help="documents of a label")
    given = parser.parse_args(arguments)
    names = sorted(set(_ask("pkgnames").split()))
    answers = (_ask("show", *names[i : i + ASKED]) for i in range(0, len(names), ASKED))
    write_splits(given.out, drop_rare(read_packages("\n\n".join(answers)), given.least))


def _ask(command: str, *names: str) -> str:
    options = ["-o", "APT::Cache::AllVersions=0", "-o", "Acquire::Languages=en"]
    done = subprocess.run(
        ["apt-cache", *options, command, *names], capture_output=True, text=True, check=False
    )
    return done.stdout  # names that only others provide are an error, and no packages


def read_packages(answer: str) -> Iterator[Document]:
    """Yield the packages of what `apt-cache show` says, each once, that depend on others."""
    seen = set()
    for stanza in re.split(r"\n\n+", answer):
        fields = read_fields(stanza)
        labels = sorted(find_dependencies(fields))
        name = fields.get("Package", "")
        if labels and name not in seen:
            seen.add(name)
            about = fields.get("Description-en") or fields.get("Description", "")
            yield Document(name, f"{name.replace('-', ' ')}. {' '.join(about.split())}", labels)


def read_fields(stanza: str) -> dict[str, str]:
    """Return the fields of one package; lines that begin with a blank go on with the last."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith(" ") and name:
            fields[name] += "\n" + line[1:]
        elif ":" in line:
            name, value = line.split(":", 1)
            fields[name] = value.strip()
    return fields


def find_dependencies(fields: dict[str, str]) -> set[str]:
    """Return the packages that one depends on, of alternatives the first."""
    items = ",".join(fields.get(name, "") for name in ("Depends", "Pre-Depends")).split(",")
    return {found.group(1) for item in items if (found := NAME.match(item))}


def drop_rare(documents: Iterable[Document], least: int) -> list[Document]:
    """Drop labels of fewer documents, and documents that are left without any."""
    known = list(documents)
    counts = Counter(label for each in known for label in each.labels)
    kept = [
        each._replace(labels=[label for label in each.labels if counts[label] >= least])
        for each in known
    ]
    return [each for each in kept if each.labels]


def divide(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Return both splits; which one a document is in depends on its name alone."""
    splits: dict[str, list[Document]] = {"train": [], "test": []}
    for each in documents:
        is_test = int(md5(each.name.encode()).hexdigest(), 16) % TEST_ONE_IN == 0
        splits["test" if is_test else "train"].append(each)
    return splits


def write_splits(out: Path, documents: Iterable[Document]) -> None:
    """Write both splits as JSON lines, and say how large they are."""
    out.mkdir(parents=True, exist_ok=True)
    for split, chosen in divide(documents).items():
        lines = [json.dumps({"text": each.text, "labels": each.labels}) for each in chosen]
        (out / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
        print(f"{split}: {len(lines):,} documents")


if __name__ == "__main__":
    main()
