"""A real browser, Debian's chromium, and pages on which nothing may go wrong unseen."""

import shutil
from contextlib import contextmanager

import pytest
from served import served, train_planted

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")  # as its event loop would be in the way of other tests
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server of two models that keeps feedback."""
    folder = tmp_path_factory.mktemp("models")
    models = [train_planted(folder / "planted"), train_planted(folder / "second", seed=3)]
    with served(*models, feedback=folder / "said.db") as found:
        found.file = folder / "said.db"
        yield found


def describe(said):
    """Return what the browser said of a problem, and where."""
    return f"{said.text} {said.location.get('url', '')}"


@pytest.fixture
def open_page(browser):
    """Return what opens pages; it fails if a script did, or if the browser refused something."""
    contexts, problems = [], []

    def work(url, **options):
        context = browser.new_context(**{"locale": "en-GB", **options})
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: said.type == "error" and problems.append(describe(said)))
        page.goto(url)
        return page

    yield work
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def serve_page(open_page):
    """Return what serves models and opens their page, closed before the server that it may ask."""

    @contextmanager
    def work(model, feedback=None, **options):
        with served(model, feedback=feedback) as running:
            page = open_page(running.url, **options)
            yield page
            page.context.close()

    return work


@pytest.fixture
def page(open_page, running):
    return open_page(running.url)
