"""The Tab key: commands, options and models, in every shell that typer knows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("longtail")
CASES = [("tr", "train"), ("train --mo", "--model"), ("train x --model gl", "glas")]

pytestmark = pytest.mark.skipif(not COMMAND.exists(), reason="longtail is not installed here")


def run(*command, **variables):
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_bash_completes(typed, expected):
    words = ["longtail", *typed.split()]
    script = f"""
        PATH={COMMAND.parent}:$PATH
        eval "$(longtail --show-completion)"
        COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
        $(complete -p longtail | sed 's/.*-F \\([^ ]*\\).*/\\1/') longtail
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert run("bash", "-c", script).split() == [expected]


@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_zsh_and_fish_are_answered(typed, expected):
    asked = {"_TYPER_COMPLETE_ARGS": f"longtail {typed}"}
    assert f'"{expected}"' in run(COMMAND, _LONGTAIL_COMPLETE="complete_zsh", **asked)
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_LONGTAIL_COMPLETE": "complete_fish"}
    assert run(COMMAND, **fish, **asked).split("\t")[0].strip() == expected
