"""A model's settings as the user gives them: `--set` over `--config` over the defaults."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.errors import ParameterError
from longtail.models.registry import DEFAULT_MODEL
from longtail.reading import ANYTHING, ReadOptions


def gather_settings(
    model: str | None,
    config: Path | None,
    pairs: Sequence[str],
    options: Mapping[str, Any],
    reading: ReadOptions = ANYTHING,
) -> tuple[str, dict[str, Any], ReadOptions]:
    """Return the model's name, the settings that differ from its defaults, and how data are read.

    `options` are settings that have an option of their own, None where it was not given.
    """
    settings = {} if config is None else read_config(config)
    reading = reading.over(ReadOptions.pop_from(settings))
    named = settings.pop("model", None)
    given = parse_pairs(pairs)
    for key, value in options.items():
        if value is not None and key in given:
            option = key.replace("_", "-")
            raise ParameterError(
                f"--{option} and --set both give the {key}: {value} and {given[key]}"
            )
    settings.update(given)
    settings.update({key: str(value) for key, value in options.items() if value is not None})
    return model or named or DEFAULT_MODEL, settings, reading


def parse_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """Turn ["trees=3", …] into {"trees": "3", …}."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ParameterError(f"--set needs key=value, such as trees=3. Got '{pair}' instead.")
        if key in settings:
            raise ParameterError(f"--set gives '{key}' twice: {settings[key]} and {value.strip()}")
        settings[key] = value.strip()
    return settings


def read_config(path: Path) -> dict[str, str]:
    """Read the keys of a TOML file: `model`, how data are read, and the model's parameters."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError as error:
        raise ParameterError(f"There is no config file {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParameterError(f"{path} is not a TOML file: {error}") from error
    return {key: _as_text(path, key, value) for key, value in table.items()}


def _as_text(path: Path, key: str, value: Any) -> str:
    """Return a TOML value as `--set` would spell it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ParameterError(
        f"{path}: '{key}' must be a text, a number, true or false. "
        f"Got a {type(value).__name__} instead."
    )
