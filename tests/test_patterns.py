"""Every regular expression of the package takes linear time, on hostile text too."""

import ast
import importlib
import itertools
import re
import time
from pathlib import Path
from re import _parser as parser

import pytest

import longtail
from longtail.text.words import _ASCII_WORD, _EMOJI, _FLAG_LETTER, _UNSPACED, word_pattern

PACKAGE = Path(longtail.__file__).parent
FUNCTIONS = {
    "compile",
    "match",
    "fullmatch",
    "search",
    "sub",
    "subn",
    "split",
    "findall",
    "finditer",
}
# Files in which functions put patterns together, with what comes of it.
BUILT = {
    "longtail/text/words.py": [
        _ASCII_WORD,
        word_pattern(),
        word_pattern(single_characters=True),
        *map(re.compile, (f"[{_UNSPACED}]", _EMOJI, _FLAG_LETTER)),
    ],
    "longtail/runtime/store/atomic.py": [re.compile(r"\.model\.(tmp|old)-[0-9a-f]{8}")],
}
QUICK = 0.002  # seconds of processor time that any pattern may take
SHORT = (8, 12, 16, 20, 24)  # an exponential pattern shows itself here, before it hangs
LONG = (512, 2048, 8192)


def find_patterns():
    """Yield for each call of `re` in the package its place, its pattern, and how that is used."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        if not re.search(r"\bre\.", source):  # parsing them all takes seconds
            continue
        place, tree = str(path.relative_to(PACKAGE.parent)), ast.parse(source)
        names = {id(node.value): node.targets[0].id for node in ast.walk(tree) if is_constant(node)}
        for node in ast.walk(tree):
            if is_call_of_re(node):
                uses = {node.func.attr} - {"compile"} or find_uses(tree, names.get(id(node)))
                for pattern in compile_patterns(node, place):
                    yield f"{place} {ast.unparse(node.args[0])[:60]}", pattern, uses


def is_constant(node):
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def is_call_of_re(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in FUNCTIONS
    )


def find_uses(tree, name):
    """Return the methods that are called of the pattern `name`; any, if that cannot be seen."""
    found = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == name and node.attr in FUNCTIONS
    }
    return found or {"findall"}


def compile_patterns(node, place):
    if place in BUILT:
        return BUILT[place]
    module = importlib.import_module(place.removesuffix(".py").replace("/", "."))
    source = compile(ast.Expression(node.args[0]), place, "eval")
    return [re.compile(eval(source, dict(vars(module))))]


def letters_of(pattern):
    """Return a character for each part of a pattern, and one that no part knows."""
    found = {"\x01", "a", "1", " ", "\n"}

    def walk(parts):
        for kind, value in parts:
            if kind in (parser.LITERAL, parser.NOT_LITERAL):
                found.add(chr(value))
            elif kind is parser.IN:
                walk(value)
            elif kind is parser.RANGE:
                found.add(chr(value[0]))
            elif kind in (parser.MAX_REPEAT, parser.MIN_REPEAT, parser.POSSESSIVE_REPEAT):
                walk(value[2])
            elif kind is parser.SUBPATTERN:
                walk(value[3])
            elif kind is parser.ATOMIC_GROUP:
                walk(value)
            elif kind is parser.BRANCH:
                for branch in value[1]:
                    walk(branch)
            elif kind in (parser.ASSERT, parser.ASSERT_NOT):
                walk(value[1])

    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    walk(parser.parse(source, pattern.flags & ~re.DEBUG))
    # Hundreds of letters in a class behave alike.
    return sorted(found)[:: max(len(found) // 16, 1)][:18]


def hostile_texts(pattern):
    """Yield what to put in front, what to repeat, and what to put behind."""
    letters = letters_of(pattern)
    pumps = [*letters, *map("".join, itertools.permutations(letters[:10], 2))]
    return itertools.product(("", letters[-1], "1"), pumps, ("", "\x01", "x"))


def seconds(pattern, uses, text):
    """Return the processor time that the uses of a pattern take, the least of three."""
    took = []
    for _ in range(3):
        began = time.process_time()
        for use in uses:
            given = (text,) if use not in ("sub", "subn") else ("", text)
            result = getattr(pattern, use)(*given)
            if use == "finditer":
                list(result)
        took.append(time.process_time() - began)
        if took[-1] < QUICK:
            break
    return min(took)


def find_slow(pattern, uses):
    """Return a text on which the time grows faster than the text, or None."""
    for before, pump, after in hostile_texts(pattern):
        times = []
        for n in (*SHORT, *LONG):
            times.append(seconds(pattern, uses, before + pump * n + after))
            # The lengths grow by 4: linear time does so, too, and quadratic time by 16.
            if times[-1] > QUICK and (n in SHORT or times[-1] > 8 * max(times[-2], QUICK)):
                return before, pump, after, n, times
    return None


ALL = list({pattern: (name, pattern, uses) for name, pattern, uses in find_patterns()}.values())


def test_the_patterns_are_found():
    assert len(ALL) >= 10


@pytest.mark.parametrize(("pattern", "uses"), [row[1:] for row in ALL], ids=[row[0] for row in ALL])
def test_a_pattern_takes_linear_time(pattern, uses):
    assert find_slow(pattern, uses) is None


@pytest.mark.parametrize(
    ("slow", "use"),
    [
        (r"(\d+(,\d+)*)?(\s*\d+:[-+.\de]+)+", "fullmatch"),
        (r"(a|a)*b", "match"),
        (r"(?m)^\s*__label__\S", "search"),
        (r"\s*x", "sub"),
    ],
)
def test_a_slow_pattern_is_noticed(slow, use):
    assert find_slow(re.compile(slow), {use}) is not None
