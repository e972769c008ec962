"""Every command with hostile names, and that the attack would see what comes through."""

from random import Random

import pytest

from attack.names import SHOWN, Hostile, check_output, check_page
from longtail import terminal


@pytest.mark.parametrize("show", SHOWN[:6] + SHOWN[7:], ids=lambda show: show.__name__)
def test_nothing_hidden_comes_through(show, tmp_path):
    hostile = Hostile(tmp_path, Random(4))
    for _ in range(3):
        check_output(show(hostile))


def test_what_comes_through_would_be_seen(tmp_path, monkeypatch):
    hostile = Hostile(tmp_path, Random(1))
    monkeypatch.setattr(terminal, "visible", lambda text: text)
    with pytest.raises(AssertionError, match="came through"):
        check_output(hostile.verify())


@pytest.mark.parametrize(
    "text",
    [
        "<style></style><b>x</b>",
        "<style></style><p onclick='x'>",
        "<style></style><a href='http://x'>x</a>",
        "<style></style><p style='color: red'>",
        "<style></style><style></style>",
        "<style></style>\u202e",
    ],
)
def test_pages_that_are_not_ours(text):
    with pytest.raises(AssertionError, match="came"):
        check_page(text)
