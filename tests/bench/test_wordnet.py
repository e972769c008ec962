"""The data set of meanings and what they are a kind of."""

import json

from bench.wordnet import find_documents, main, read_meanings

LINES = """  1 This line is the licence's.
00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which exists
00001930 03 n 02 physical_entity 0 thing 0 001 @ 00001740 n 0000 | an entity that can be touched
00002137 03 n 01 object 0 002 @ 00001930 n 0000 + 00001740 n 0101 | a thing; "lost objects"
00002684 03 n 01 rock 0 001 @i 00002137 n 0000 | a hard object
00003553 03 n 01 pebble 0 001 @ 00002684 n 0000 | a small rock
"""


def test_meanings_become_documents():
    documents = list(find_documents(dict(read_meanings(LINES.splitlines(keepends=True)))))
    assert [each.name for each in documents] == ["n00001930", "n00002137", "n00002684", "n00003553"]
    first, second, _, last = documents
    assert first.text == "physical entity, thing: an entity that can be touched"
    assert first.labels == ["entity n00001740"]
    assert second.text == 'object: a thing; "lost objects"'
    assert second.labels == ["entity n00001740", "physical entity n00001930"]
    assert last.labels == ["object n00002137", "physical entity n00001930", "rock n00002684"]


def test_splits_are_written(tmp_path):
    for part, text in (("noun", LINES), ("verb", "")):
        (tmp_path / f"data.{part}").write_text(text)
    main([str(tmp_path / "out"), "--folder", str(tmp_path)])
    files = [tmp_path / "out" / f"{split}.jsonl" for split in ("train", "test")]
    found = [json.loads(line) for file in files for line in file.read_text().split("\n") if line]
    labels = sorted(label for each in found for label in each["labels"])
    assert labels == sorted(
        ["entity n00001740"] * 3 + ["physical entity n00001930"] * 3 + ["object n00002137"] * 2
    )
