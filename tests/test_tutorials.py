"""The tutorials are run as a reader would run them, and print what they show."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from pages_run import check_shown, run_page

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def adapt(folder: Path) -> Callable[[str], str]:
    """Return what changes commands: another port, and packages that go into a folder here."""
    port = str(free_port())
    quiet = "pip install --no-deps --no-build-isolation --disable-pip-version-check"

    def change(line: str) -> str:
        line = re.sub(r"\b8000\b", port, line)
        return line.replace("pip install", f"{quiet} --target {folder / 'site'}")

    return change


@pytest.mark.filterwarnings("default:the model does not know")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    run_page(page, tmp_path, adapt(tmp_path))


def test_output_is_compared():
    check_shown("a\n…\nP  82.00 …\n", "a\n\nb\nc\nP 82.5 (3)\n", "page")
    for wrong in ("a\nP 95.00 x\n", "b\nP 82.00 x\n", "a\nP 82.00 x\nd\n", "a\n"):
        with pytest.raises(pytest.fail.Exception, match="page"):
            check_shown("a\n…\nP  82.00 …\n", wrong, "page")
