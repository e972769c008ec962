"""Runs the code of a page of the documentation and compares what it prints with what is shown.

- A `console` block is run by bash, in a terminal without colors. `$ ` begins a command, `> ` goes
  on with it, and what follows is its output. Commands must succeed, unless an `Error:` is shown.
- A `python` block is run in this process; a `text` block right behind it is its output.
- A block with a caption is a file of that name.

`…` stands for any text, alone on a line for any number of lines. Blanks, empty lines, the length of
rules, and bars, which stay only if they took a while, do not count. Numbers with a decimal point
may differ a little, as processors round differently.
"""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```(?:\{code-block\} )?(\w+)\n(?::caption: (\S+)\n+)?(.*?)^```$", re.M | re.S)
DECIMAL = r"\d[\d,]*\.\d+"
CLOSE = {"rel": 0.02, "abs": 0.02}
SECONDS = 300  # on a machine that does other work as well
MARK = "@@ended"
BAR = "━"


@dataclass
class Block:
    """A fenced block of a page."""

    language: str
    caption: str | None
    text: str
    line: int


def find_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], found[3], text.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(text)
    ]


def find_python(page: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return [block.text for block in find_blocks(page) if block.language == "python"]


def run_page(page: Path, folder: Path, change: Callable[[str], str] = str) -> dict[str, object]:
    """Run all blocks of a page in `folder`; return the names that its Python code defines.

    `change` makes of a line what is run in its place, such as another port.
    """
    names: dict[str, object] = {"__name__": "example"}
    printed: str | None = None
    for block in find_blocks(page):
        place = f"{page.name}:{block.line}"
        if block.caption is not None:
            file = folder / block.caption
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for command, shown, real, code in run_console(block, folder, change):
                expected = 2 if "Error: " in shown else 0
                assert code == expected, f"{place}: {command}\nended with {code}:\n{real}"
                if shown.strip():
                    check_shown(shown, real, f"{place}: {command}")
        elif block.language == "python":
            printed = run_python(block.text, place, names)
        elif block.language == "text" and printed is not None:
            check_shown(block.text, printed, place)
        if block.language != "python":
            printed = None
    return names


def run_python(code: str, place: str, names: dict[str, object]) -> str:
    """Run a block in this process; return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, place, "exec"), names)
    return printed.getvalue()


def run_console(
    block: Block, folder: Path, change: Callable[[str], str] = str
) -> list[tuple[str, str, str, int]]:
    """Run a console block; return command, shown output, real output and exit code of each."""
    steps = split_console(block.text)
    after = rf"printf '\n{MARK} %s\n' $?"
    script = "\n".join(f"{change(command)}\n{after}" for command, _ in steps)
    found = re.split(rf"\n{MARK} (\d+)\n", run_bash(script, folder))
    assert len(found) == 2 * len(steps) + 1, f"line {block.line}: bash stopped early:\n{found}"
    return [
        (command, shown, found[2 * i], int(found[2 * i + 1]))
        for i, (command, shown) in enumerate(steps)
    ]


def split_console(text: str) -> list[tuple[str, str]]:
    """Return each command of a console block with the output that is shown below it."""
    steps: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        elif line.startswith("> "):
            steps[-1] = (f"{steps[-1][0]}\n{line[2:]}", "")
        else:
            steps[-1] = (steps[-1][0], f"{steps[-1][1]}{line}\n")
    return steps


def run_bash(script: str, folder: Path) -> str:
    """Run a script in a terminal; return what is seen there."""
    bin_folder = Path(sys.executable).parent
    # A dumb terminal shows tables as any other of 80 columns does, and no bars that move.
    env = os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        ["timeout", str(SECONDS), "bash", "-c", script],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = bytearray()
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while piece := os.read(ours, 1 << 16):
            seen += piece
    os.close(ours)
    done.wait()
    return seen.decode("utf-8", "replace").replace("\r\n", "\n")


def check_shown(shown: str, real: str, place: str) -> None:
    """Fail unless the output is the one that is shown."""
    wanted, got = (
        [re.sub("─+", "─", line) for line in text.splitlines() if line.strip() and BAR not in line]
        for text in (shown, real)
    )
    if not _match(wanted, got):
        pytest.fail(f"{place}\n\nshown:\n{shown}\nreal:\n{real}", pytrace=False)


def _match(wanted: list[str], got: list[str]) -> bool:
    if not wanted:
        return not got
    if wanted[0].strip() == "…":
        return any(_match(wanted[1:], got[i:]) for i in range(len(got) + 1))
    return bool(got) and _match_line(wanted[0], got[0]) and _match(wanted[1:], got[1:])


def _match_line(wanted: str, got: str) -> bool:
    parts = re.split(rf"({DECIMAL}|…)", " ".join(wanted.split()))
    pattern = "".join(
        ".*" if part == "…" else f"({DECIMAL})" if re.fullmatch(DECIMAL, part) else re.escape(part)
        for part in parts
    )
    found = re.fullmatch(pattern, " ".join(got.split()))
    numbers = [part for part in parts if re.fullmatch(DECIMAL, part)]
    return found is not None and all(
        _number(a) == pytest.approx(_number(b), **CLOSE)
        for a, b in zip(found.groups(), numbers, strict=True)
    )


def _number(text: str) -> float:
    return float(text.replace(",", ""))
