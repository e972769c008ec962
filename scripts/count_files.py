"""Count the files of the package, and the calls between them, that a command passes through.

    python scripts/count_files.py train data.jsonl --model linear --out model

The fewer, the fewer places a reader has to visit to follow a command. An edge is a function of one
file calling one of another, directly or through other packages; compiled functions are not seen.
"""

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import longtail
from longtail.cli import app

ROOT = Path(longtail.__file__).parent
FUNCTION = 1  # the flag of code that is a function, not the body of a class or a module


def is_ours(code: CodeType) -> bool:
    """Whether code is in a file of the package."""
    return Path(code.co_filename).is_relative_to(ROOT)


def trace(arguments: list[str]) -> tuple[set[str], set[tuple[str, str]]]:
    """Run the command line; return the files and the edges that it passes through."""
    files: set[str] = set()
    edges: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & FUNCTION or not is_ours(code):
            return
        files.add(code.co_filename)
        caller = frame.f_back
        while caller is not None and not is_ours(caller.f_code):
            caller = caller.f_back
        if caller is None or not caller.f_code.co_flags & FUNCTION:
            return  # it is called while its module is imported
        if caller.f_code.co_filename != code.co_filename:
            edges.add((caller.f_code.co_filename, code.co_filename))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        app(arguments, prog_name="longtail")
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return files, edges


if __name__ == "__main__":
    found, between = trace(sys.argv[1:])
    for pair in sorted(between):
        print(
            "  " + " -> ".join(str(Path(file).relative_to(ROOT)) for file in pair), file=sys.stderr
        )
    print(f"{len(found)} files, {len(between)} edges", file=sys.stderr)
