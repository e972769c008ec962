"""The page in a real browser: Debian's chromium, by mouse and by keyboard."""

import shutil

import pytest
from served import served, train_planted

from longtail.serve.feedback import read_feedback

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

TEXT = "hops and malt, then yeast"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = train_planted(tmp_path_factory.mktemp("models") / "planted")
    with served(folder, feedback=folder.parent / "said.db") as found:
        found.file = folder.parent / "said.db"
        yield found


@pytest.fixture
def page(browser, running):
    """A page on which nothing may go wrong unseen."""
    opened = browser.new_page()
    problems = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: said.type == "error" and problems.append(said.text))
    opened.goto(running.url)
    yield opened
    opened.close()
    assert problems == []


def test_labels_appear_and_can_be_judged_by_mouse(page, running):
    page.fill("#text", TEXT)
    page.wait_for_selector("#labels li[data-label=beer] .facts:not(:empty)")
    score = page.inner_text("#labels li[data-label=beer] .score")
    assert 0.5 < float(score) <= 1
    page.click("button[aria-label='Accept beer']")
    page.click("#save")
    page.wait_for_selector("#said:text-is('Saved.')")
    kept = list(read_feedback(running.file).values())[-1]
    assert (kept.text, kept.accepted, kept.rejected) == (TEXT, ["beer"], [])
    assert kept.shown[0]["label"] == "beer"


def test_everything_by_keyboard(page, running):
    page.focus("#text")
    page.keyboard.type("rook and pawn")
    page.wait_for_selector("#labels li[data-label=chess] .facts:not(:empty)")
    page.keyboard.press("Escape")
    page.wait_for_selector("#marked mark.for-3")
    assert page.inner_text("#marked") == "rook and pawn"
    page.keyboard.press("Enter")
    page.wait_for_selector("#labels li[data-label=chess].accepted")
    page.keyboard.press("x")
    page.wait_for_selector("#labels li[data-label=chess].rejected")
    page.keyboard.press("u")
    page.wait_for_selector("#labels li[data-label=chess].accepted")
    page.keyboard.press("/")
    page.keyboard.type("saling")
    page.wait_for_selector("#found li[aria-selected=true]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#labels li[data-label=sailing]:is(.added, .accepted)")
    page.keyboard.press("Escape")
    page.keyboard.press("s")
    page.wait_for_selector("#said:text-is('Saved.')")
    kept = list(read_feedback(running.file).values())[-1]
    assert set(kept.labels) == {"chess", "sailing"}


def test_sliders_choose_among_the_labels(page):
    page.fill("#text", TEXT)
    page.wait_for_selector("#labels li")
    page.fill("#threshold", "0")
    page.fill("#k", "2")
    assert page.locator("#labels li").count() == 2
    page.fill("#threshold", "1")
    assert page.locator("#labels li").count() <= 1


def test_a_narrow_page_does_not_scroll_sideways(page):
    page.set_viewport_size({"width": 320, "height": 700})
    page.fill("#text", TEXT)
    page.wait_for_selector("#labels li")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_labels_are_shown_as_text_whatever_they_hold(browser, tmp_path):
    import longtail

    names = ["<img src=x onerror=alert(1)>", "nul\0 and\nline", "\u202eright to left", "x" * 10_000]
    texts = ["malt hops", "rook pawn", "wind mast", "oven flour"] * 5
    longtail.Linear().fit(texts, [[name] for name in names] * 5).save(tmp_path / "odd")
    with served(tmp_path / "odd") as running:
        opened = browser.new_page()
        opened.goto(running.url)
        opened.fill("#text", "malt hops rook pawn wind mast oven flour")
        opened.fill("#threshold", "0")
        opened.wait_for_selector("#labels li")
        shown = opened.locator("#labels .name bdi").all_text_contents()
        assert opened.locator("#labels img").count() == 0
        opened.close()
    assert set(shown) == {names[0], "nul\\u0000 and\\u000aline", "\\u202eright to left", names[3]}


def test_a_token_is_asked_for(browser, tmp_path):
    folder, file = train_planted(tmp_path / "planted"), tmp_path / "tokens"
    file.write_text("a-token-for-the-page")
    with served(folder, token_file=file) as running:
        opened = browser.new_page()
        opened.goto(running.url)
        opened.wait_for_selector("#token-form:not([hidden])")
        opened.fill("#token", "a-token-for-the-page")
        opened.press("#token", "Enter")
        opened.wait_for_selector("#model option", state="attached")
        assert opened.is_hidden("#problem")
        opened.close()
