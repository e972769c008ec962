"""One JSON value from a line of text, with an error that says where and why."""

import json
from pathlib import Path
from typing import Any

from longtail.errors import DataError

_KINDS = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


# Twice as quick as json.loads on short lines.
_decode = json.JSONDecoder().raw_decode


def parse_json(text: str, path: Path, line: int) -> Any:
    """Parse `text`, which stands on line `line` of `path`."""
    try:
        value, end = _decode(text.lstrip())
        if text[end:].strip():
            value = json.loads(text)  # for its error, or for blanks in front
        # Half a surrogate pair can stand in an escape, but never in UTF-8 output.
        return _mend(value) if "\\ud" in text or "\\uD" in text else value
    except RecursionError:
        raise DataError("the JSON is nested too deeply", path=path, line=line) from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"not valid JSON: {error.msg} at column {error.pos + 1}", path=path, line=line
        ) from None
    except ValueError as error:
        raise DataError(f"not valid JSON: {error}", path=path, line=line) from None


def parse_object(text: str, path: Path, line: int) -> dict[str, Any]:
    """Parse `text` as a JSON object."""
    value = parse_json(text, path, line)
    if type(value) is not dict:
        raise DataError(
            f"each line must be a JSON object; got {kind_of(value)}", path=path, line=line
        )
    return value


def kind_of(value: Any) -> str:
    """Return what JSON calls a value of this kind."""
    return _KINDS.get(type(value), type(value).__name__)


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mend(part) for part in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(part) for key, part in value.items()}
    return value
