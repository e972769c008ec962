"""The page for everyone: axe-core finds no violation; languages, widths, directions, paper."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from shown import TEXT, row, write

import longtail.serve

PAGE = Path(longtail.serve.__file__).parent / "page"
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def axe():
    if not AXE.exists():
        pytest.skip("there is no axe-core: npm ci --prefix tests/serve")
    return AXE.read_text()


def find_violations(page, axe):
    page.evaluate(axe)
    found = page.evaluate("(rules) => axe.run({ runOnly: rules })", RULES)["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 320), ("dark", 320), ("dark", 1280), ("light", 3840)]
)
def test_axe_finds_no_violation(open_page, running, axe, scheme, width):
    page = open_page(running.url, color_scheme=scheme, viewport={"width": width, "height": 900})
    write(page, TEXT, "beer")
    page.fill("#threshold", "0")
    page.click("button[aria-label='Accept beer']")
    page.click("button[aria-label='Reject chess']")
    page.click(f"{row('beer')} .name")
    page.wait_for_selector(".details section")
    assert find_violations(page, axe) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_axe_finds_no_violation_in_what_opens(open_page, running, axe, tmp_path):
    page = open_page(running.url)
    (tmp_path / "docs.txt").write_text(f"{TEXT}\nrook and pawn")
    page.set_input_files("#file", tmp_path / "docs.txt")
    page.wait_for_selector(row("beer"))
    page.select_option("#other", "second")
    page.wait_for_selector(row("beer", "second"))
    assert find_violations(page, axe) == []
    page.fill("#search", "sai")
    page.wait_for_selector("#found li")
    assert find_violations(page, axe) == []
    for name in ("card", "copy", "keys"):
        page.click(f"#{name}-button")
        page.wait_for_selector(f"#{name}-dialog[open]")
        assert find_violations(page, axe) == []
        page.keyboard.press("Escape")


def read_words(language):
    return json.loads((PAGE / f"{language}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("language", ["de", "fi", "fr"])
def test_every_language_has_all_words(language):
    ours, theirs = read_words("en"), read_words(language)
    assert list(ours) == list(theirs)
    for name, words in ours.items():
        places = [sorted(re.findall(r"\{\w+\}", each)) for each in (words, theirs[name])]
        assert places[0] == places[1], name


def test_every_word_is_used_and_there():
    scripts = "".join(path.read_text() for path in PAGE.glob("*.js"))
    shown = set(re.findall(r'data-words[a-z-]*="([^"]+)"', (PAGE / "index.html").read_text()))
    known = {name.partition(".")[0] for name in read_words("en")}
    assert shown <= known
    made = r'\bt\("([\w-]+)"|\bcount\("([\w-]+)"'
    assert {a or b for a, b in re.findall(made, scripts)} <= known
    unused = {name for name in known - shown if f'"{name}"' not in scripts}
    assert all(re.match(r"card-|ordered-|text-", name) for name in unused), unused


@pytest.mark.parametrize(
    ("locale", "title", "score"),
    [
        ("de-AT", "Schlagwörter", "0,"),
        ("fi-FI", "Asiasanat", "0,"),
        ("fr-CA", "Mots-clés", "0,"),
        ("pt-PT", "Labels", "0."),
    ],
)
def test_the_page_speaks_the_language_of_the_browser(open_page, running, locale, title, score):
    page = open_page(running.url, locale=locale)
    write(page, f"{TEXT} rook", "beer")
    assert page.inner_text("#labels-title") == title
    page.fill("#threshold", "0")
    assert page.inner_text(".labels li:last-child .score").startswith(score)
    page.select_option("#language", "fi")
    page.wait_for_selector("#labels-title:has-text('Asiasanat')")
    page.reload()
    page.wait_for_selector("#labels-title:has-text('Asiasanat')")  # as it was chosen
    assert page.get_attribute("html", "lang") == "fi"


def test_colors_can_be_chosen(open_page, running):
    page = open_page(running.url, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.select_option("#theme", "dark")
    assert page.evaluate(ground) != light
    page.reload()
    assert page.evaluate(ground) != light
    page.select_option("#theme", "")
    assert page.evaluate(ground) == light


LONG = (
    "שלום עולם, malt hops efficient fluffy\nrook pawn\twind mast 😀 oven flour.\n\n"
    "هذا نص عربي قصير عن malt and yeast -7b away — site, (hops)? " * 4 + "\n"
)


@pytest.mark.parametrize("width", [320, 717, 1280])
def test_marks_lie_under_their_words(open_page, running, width):
    page = open_page(running.url, viewport={"width": width, "height": 900})
    page.fill("#text", LONG)
    page.wait_for_selector("#columns li .facts:not(:empty)")
    page.focus("#columns .name")
    page.wait_for_selector("#marked-for:not(:empty)")
    page.wait_for_load_state("networkidle")  # a later answer would mark the words again
    page.evaluate("CSS.highlights.clear()")  # letters on colors are drawn a little differently
    hide = "([one, other]) => { for (const [id, seen] of [[one, true], [other, false]]) \
        document.getElementById(id).style.color = seen ? 'red' : 'transparent'; }"
    shots = []
    for pair in (["text", "marked"], ["marked", "text"]):
        page.evaluate(hide, pair)
        shots.append(imread(io.BytesIO(page.locator(".paper").screenshot()), format="png"))
    assert np.abs(shots[0] - shots[1]).max() < 0.05  # edges are not drawn alike to the last bit


def test_texts_are_written_from_right_to_left_where_they_begin_so(page):
    page.fill("#text", "שלום עולם hops malt")
    direction = "(id) => getComputedStyle(document.getElementById(id)).direction"
    page.wait_for_selector("#columns li")
    assert page.evaluate(direction, "text") == "rtl"
    assert page.evaluate(direction, "marked") == "rtl"


def test_print_shows_text_and_labels_only(page):
    write(page, TEXT, "beer")
    page.emulate_media(media="print")
    assert page.is_visible("#marked")
    assert page.is_visible(f"{row('beer')} .name")
    for hidden in ("#text", ".judge >> nth=0", "#search", "#save", "#k", "#model"):
        assert page.is_hidden(hidden)
