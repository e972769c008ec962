"""What is shown holds no character that one cannot see; what is read by programs stays exact."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.visible import as_json, is_hidden, spell_count, visible, visible_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\x9b31m\x85\x7f", r"\x9b31m\x85\x7f"),
        ("a\u202eb\u2066c\u200ed\u061c", r"a\u202eb\u2066c\u200ed\u061c"),
        ("a\nb\tc\rd\u2028e\u2029", r"a\nb\tc\rd\u2028e\u2029"),
        ("\u200b\ufeff\ud800\U000e0001", r"\u200b\ufeff\ud800\U000e0001"),
        ("größe 日本\u3000語 \xa0 ✓ 🍺 C:\\dir", "größe 日本\u3000語 \xa0 ✓ 🍺 C:\\dir"),
    ],
)
def test_what_is_spelled_out_and_what_stays(text, shown):
    assert visible(text) == shown


def test_every_character_that_is_not_seen():
    hidden = [chr(code) for code in range(sys.maxunicode + 1) if is_hidden(chr(code))]
    ranges = [(0, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x2064)]
    ranges += [(0x2066, 0x206F), (0xD800, 0xDFFF), (0xE0020, 0xE007F)]
    named = {chr(code) for first, last in ranges for code in range(first, last + 1)}
    assert named < set(hidden)
    assert visible("".join(hidden)).isprintable()


@given(st.text(st.characters()))
def test_no_text_brings_in_a_hidden_character(text):
    assert not any(map(is_hidden, visible(text)))
    assert not any(map(is_hidden, visible_lines(text).replace("\n", "").replace("\t", "")))


def is_utf_16(text):
    """Whether no two halves stand side by side, which are one character to JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") == text


texts = st.text(st.characters()).filter(is_utf_16)


@given(st.lists(st.dictionaries(texts, texts)))
def test_json_reads_back_exactly_and_hides_nothing(value):
    for indent in (None, 2):
        text = as_json(value, indent)
        assert json.loads(text) == value
        assert not any(map(is_hidden, text.replace("\n", "")))
        text.encode("utf-8")
    assert "\n" not in as_json(value)


def test_how_many_there_are():
    counted = [spell_count(n, "label") for n in (0, 1, 2, 1000)]
    assert counted == ["0 labels", "1 label", "2 labels", "1,000 labels"]
