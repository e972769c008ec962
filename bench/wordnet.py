"""A data set that no constant was tuned on: what words mean, labelled by what that is a kind of.

    python -m bench.wordnet OUT [--folder /usr/share/wordnet] [--least 2]

Reads the files of WordNet, which Debian's package `wordnet-base` puts into that folder. A document
is a meaning of nouns or verbs: its words and their explanation. Its labels are the meanings that it
is a kind of, up to three steps above, as far as at least `--least` documents have them. OUT gets
`train.jsonl` and `test.jsonl`, a fifth of the meanings. WordNet 3.0 makes some 95,000 documents of
15 words with 13,700 labels, of which half are on four documents or fewer.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.dependencies import Document, drop_rare, write_splits

PARTS = ("noun", "verb")
STEPS = 3  # from a meaning up to the last one that labels it
KIND_OF = ("@", "@i")  # the pointers to the meaning that one is a kind, or an example, of


class Meaning(NamedTuple):
    """What some words mean: their explanation, and the keys of what it is a kind of."""

    words: list[str]
    gloss: str
    above: list[str]


def main(arguments: list[str] | None = None) -> None:
    """Read the meanings and write the two splits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--least", type=int, default=2, help="documents of a label")
    given = parser.parse_args(arguments)
    paths = [given.folder / f"data.{part}" for part in PARTS]
    lines = (line for path in paths for line in path.read_text().splitlines())
    write_splits(given.out, drop_rare(find_documents(dict(read_meanings(lines))), given.least))


def read_meanings(lines: Iterable[str]) -> Iterator[tuple[str, Meaning]]:
    """Yield the key and the meaning of each line; those of the licence begin with blanks."""
    for line in lines:
        if line.startswith("  "):
            continue
        head, _, gloss = line.partition(" | ")
        fields = head.split()
        n_words = int(fields[3], 16)
        words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * n_words : 2]]
        pointers = fields[5 + 2 * n_words :]
        fours = [pointers[i : i + 4] for i in range(0, 4 * int(fields[4 + 2 * n_words]), 4)]
        above = [part + offset for kind, offset, part, _ in fours if kind in KIND_OF]
        yield fields[2] + fields[0], Meaning(words, gloss.strip(), above)


def find_documents(meanings: dict[str, Meaning]) -> Iterator[Document]:
    """Yield the meanings that are a kind of another one."""
    for key, meaning in meanings.items():
        labels = sorted(f"{meanings[each].words[0]} {each}" for each in find_above(key, meanings))
        if labels:
            yield Document(key, f"{', '.join(meaning.words)}: {meaning.gloss}", labels)


def find_above(key: str, meanings: dict[str, Meaning]) -> set[str]:
    """Return the keys of what a meaning is a kind of, up to STEPS above."""
    found: set[str] = set()
    level = [key]
    for _ in range(STEPS):
        level = [above for each in level for above in meanings[each].above if above in meanings]
        found.update(level)
    return found


if __name__ == "__main__":
    main()
