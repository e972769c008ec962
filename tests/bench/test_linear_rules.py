"""The study of linear's rules runs on small data, and chooses on other sets than it tests on."""

import json

from bench import linear_rules
from bench.linear_rules import RULES, Rule, rotate
from longtail.models.linear import choices


def test_the_rule_in_use_is_among_those_tried():
    steep = choices.RULES["steep"]
    assert linear_rules.Rule(steep.least, choices.COMMON, steep.power) in RULES


def test_a_set_has_no_say_in_the_rule_that_is_tested_on_it():
    flat = {rule.name: {"P@1": 50.0} for rule in RULES}
    first, second = RULES[1].name, RULES[2].name
    found = {
        "a": {**flat, first: {"P@1": 90.0}},
        "b": {**flat, second: {"P@1": 60.0}},
    }
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in rotate(
        found, ["a", "b"], []
    ).splitlines()[2:]]  # fmt: skip
    assert [row[:4] for row in rows] == [["a", second, "a", "+0.00"], ["b", first, "b", "+0.00"]]
    assert RULES[0].name == "C = 0.5"


def test_every_rule_is_measured(tmp_path, capsys):
    lines = [
        json.dumps({"text": f"word{i % 7} thing{i % 3}", "labels": [f"l{i % 7}"]})
        for i in range(120)
    ]
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n")
    data = str(tmp_path / "small.jsonl")
    linear_rules.main([data, "--also", data])
    printed = capsys.readouterr().out
    assert all(rule.name in printed for rule in RULES)
    assert "chosen on the others" in printed
    linear_rules.main([data, "--folds", "3", "--rules", "0.5,200,0.35", "1"])
    printed = capsys.readouterr().out
    assert Rule(1.0).name in printed
    assert RULES[1].name not in printed


def test_folds_hold_out_every_document_once(tmp_path):
    lines = [json.dumps({"text": f"word{i}", "labels": [f"l{i % 2}"]}) for i in range(50)]
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n")
    parts = list(linear_rules.read_parts(str(tmp_path / "small.jsonl"), None, 5))
    assert [len(train) + len(held) for train, held in parts] == [50] * 5
    assert sum(held.n_documents for _, held in parts) == 50
    assert linear_rules.average([{"a": {"P@1": 1.0}}, {"a": {"P@1": 2.0}}]) == {"a": {"P@1": 1.5}}
