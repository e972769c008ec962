"""The methods of a comparison: our models, as `--models` and `--set` name them, and peers."""

import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from longtail.errors import MissingExtraError, ParameterError, suggest
from longtail.models import get_model_class, model_names
from longtail.peers import OURS, PEERS, SLOW_PEERS, Contender
from longtail.version import __version__

MODULE = "longtail.compare.ours"
TEXT_SETTINGS = "tfidf"  # `--set tfidf.x=…` is for all that make rows of texts
_PEERS_BY_NAME = {peer.name: peer for peer in (*PEERS, *SLOW_PEERS)}


class Home(NamedTuple):
    """Where a package is installed: the interpreter that can import it, and the version."""

    python: Path
    version: str


class Missing(NamedTuple):
    """A peer that is not installed, and the command that installs it."""

    package: str
    command: str


class Entrant(NamedTuple):
    """A contender, and where it is installed."""

    contender: Contender
    home: Home


# ----------------------------------------------------------------------------------- our models


def parse_models(
    text: str, pairs: Mapping[str, str], options: Mapping[str, Any]
) -> list[Contender]:
    """Turn "linear,glas:preset=fast,dim=64" into contenders, each checked.

    Args:
        text: names, each with settings behind a colon; a peer's name stands for that peer.
        pairs: settings by "MODEL.key", which hold for every contender of that model.
        options: settings such as the device, for every model that has that parameter.
    """
    written = _divide(text)
    _check_pairs(pairs, {name for name, _ in written})
    _check_options(options, [name for name, _ in written])
    contenders = [_make(name, settings, pairs, options) for name, settings in written]
    names = [contender.name for contender in contenders]
    for name in names:
        if names.count(name) > 1:
            raise ParameterError(f"--models names '{name}' twice")
    return contenders


def _divide(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return names and their settings; a piece with "=" but no ":" belongs to the name before."""
    written: list[tuple[str, dict[str, str]]] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, colon, setting = piece.partition(":")
        if "=" in name and not written:
            raise ParameterError(f"--models must begin with a name. Got '{piece}' instead.")
        if "=" in name:
            setting = piece
        else:
            written.append((name.strip(), {}))
        if colon or "=" in name:
            _add_setting(*written[-1], setting)
    if not written:
        raise ParameterError(f"--models names no model (known: {', '.join(model_names())})")
    return written


def _add_setting(name: str, settings: dict[str, str], setting: str) -> None:
    key, equals, value = (text.strip() for text in setting.partition("="))
    if not equals or not key:
        raise ParameterError(
            f"--models needs key=value behind '{name}:', such as {name}:preset=fast. "
            f"Got '{setting}' instead."
        )
    if key in settings:
        raise ParameterError(f"--models gives '{key}' of {name} twice")
    settings[key] = value


def _make(
    name: str, settings: dict[str, str], pairs: Mapping[str, str], options: Mapping[str, Any]
) -> Contender:
    shown = name + ":" * bool(settings) + ",".join(f"{k}={v}" for k, v in settings.items())
    if name in _PEERS_BY_NAME:
        if settings:
            raise ParameterError(f"--models: '{name}' is a peer and takes no settings here")
        return _PEERS_BY_NAME[name]
    if name not in model_names():
        known = [*model_names(), *_PEERS_BY_NAME]
        raise ParameterError(
            f"there is no model '{name}'{suggest(name, known)} (known: {', '.join(known)})"
        )
    model_class = get_model_class(name)
    takes = inspect.signature(model_class).parameters
    given = {key: value for key, value in options.items() if value is not None and key in takes}
    for pair, value in pairs.items():
        model, _, key = pair.partition(".")
        if model == TEXT_SETTINGS and TEXT_SETTINGS in takes:
            given[pair] = value
        elif model == name:
            given[key] = value
    given |= settings
    if "seed" in given:
        raise ParameterError(f"--seeds gives the seed to all methods; leave out that of {name}")
    model_class.from_settings(given)
    return Contender(shown, OURS, MODULE, {"model": name, **given})


def _check_options(options: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ParameterError for an option that none of the models has."""
    classes = [get_model_class(name) for name in names if name in model_names()]
    taken = {key for model_class in classes for key in inspect.signature(model_class).parameters}
    for key, value in options.items():
        if value is not None and key not in taken and classes:
            raise ParameterError(f"none of the models has the option --{key}: {', '.join(names)}")


def _check_pairs(pairs: Mapping[str, str], names: set[str]) -> None:
    for pair in pairs:
        model, dot, key = pair.partition(".")
        if not dot or not key or model not in {*names, TEXT_SETTINGS}:
            raise ParameterError(
                f"--set needs MODEL.key=value with one of {', '.join(sorted(names))}, or "
                f"tfidf.key=value for all. Got '{pair}' instead{suggest(model, names)}"
            )


def text_settings(pairs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings `--set tfidf.x=…` for the rows that peers get."""
    prefix = TEXT_SETTINGS + "."
    return {key[len(prefix) :]: value for key, value in pairs.items() if key.startswith(prefix)}


# ---------------------------------------------------------------------------------------- peers


def find_home(contender: Contender, environments: Path | None) -> Home | Missing:
    """Return where a contender is installed: here, or in the environment with its name."""
    if contender.ours:
        return Home(Path(sys.executable), __version__)
    package = contender.package
    if environments is not None:
        python = environments / package / "bin" / "python"
        if python.exists() and (number := _ask_version(python, package)):
            return Home(python, number)
    try:
        return Home(Path(sys.executable), version(package))
    except PackageNotFoundError:
        return Missing(package, f"pip install {package}")


def _ask_version(python: Path, package: str) -> str:
    question = f"from importlib.metadata import version; print(version({package!r}))"
    answer = subprocess.run(
        [str(python), "-c", question], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""


def find_entrants(
    contenders: Sequence[Contender], *, peers: bool, environments: Path | None
) -> tuple[list[Entrant], list[Missing]]:
    """Return the contenders, and with `peers` every installed peer; and the missing peers.

    Raises:
        MissingExtraError: a peer that was asked for by name is not installed.
    """
    entrants: list[Entrant] = []
    missing: list[Missing] = []
    for contender in contenders:
        home = find_home(contender, environments)
        if isinstance(home, Missing):
            raise MissingExtraError(
                f"'{contender.name}' needs {home.package}, which is not installed; "
                f"install it with: {home.command}"
            )
        entrants.append(Entrant(contender, home))
    for peer in PEERS if peers else ():
        home = find_home(peer, environments)
        if isinstance(home, Missing):
            missing += [home] if home not in missing else []
        elif peer not in contenders:
            entrants.append(Entrant(peer, home))
    return entrants, missing
