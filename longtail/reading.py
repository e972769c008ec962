"""What a user may say about a source, where recognizing does not do or should not be relied on.

The fields of `ReadOptions` are the options of every command that reads, the keys of config files
and the parameters of `longtail.load`: all of them, and the table in the guide, come from here. It
is no part of `data`, so that `longtail --help` need not import that.
"""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from longtail.errors import ParameterError, suggest

NEVER = ""  # the separator of labels that are never split
_ENCODINGS = (
    "utf-8",
    "utf-16",
    "cp1252",
    "latin-1",
    "cp1251",
    "iso-8859-2",
    "shift_jis",
    "gb18030",
)

_WORDS = {"tab": "\t", "\\t": "\t", "blank": " ", "space": " ", "none": NEVER}


def _option(metavar: str, meaning: str) -> Any:
    return field(default=None, metadata={"metavar": metavar, "help": meaning})


@dataclass(frozen=True)
class ReadOptions:
    """How a source is to be read; what is None is recognized or guessed.

    Three are no options of their own: whoever writes documents out asks for all their columns by
    `keep`, `like` holds the columns of the training file while the test file is read, and with
    `in_files` what is read goes into files, for what is larger than memory.
    """

    text: str | Sequence[str] | None = _option(
        "COL[,COL]", "The column with the text; several are joined by a blank."
    )
    labels: str | None = _option("COL", "The column with the labels.")
    id: str | None = _option("COL", "The column with the documents' ids.")
    separator: str | None = _option(
        "S", "What stands between the labels of a cell: ';', ',', '|', tab, blank, or none."
    )
    delimiter: str | None = _option(
        "D", "What stands between the cells of a CSV file: ',', ';', '|' or tab."
    )
    encoding: str | None = _option("NAME", "The encoding of the text, such as cp1252 or utf-16.")
    format: str | None = _option(
        "NAME",
        "The format: text, jsonl, csv, tsv, parquet, xlsx, fasttext, annif, sparse, matrix.",
    )
    keep: bool = False
    like: Any = None  # data.columns.Columns
    in_files: bool = False

    def __post_init__(self) -> None:
        """Spell out words such as "tab", and check what can be checked without the source."""
        for name in ("separator", "delimiter"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, _WORDS.get(given, given))
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ParameterError(
                f"the delimiter must be one character, or tab. Got '{self.delimiter}' instead."
            )
        if self.encoding is not None:
            object.__setattr__(self, "encoding", check_encoding(self.encoding))

    @property
    def names_columns(self) -> bool:
        """Whether only a table, or JSON lines, can be meant."""
        return any((self.text, self.labels, self.id))

    def over(self, other: "ReadOptions") -> "ReadOptions":
        """Return these options, and those of `other` where these say nothing."""
        given = {each.name: getattr(self, each.name) for each in option_fields()}
        return replace(other, **{name: value for name, value in given.items() if value is not None})

    @classmethod
    def pop_from(cls, settings: dict[str, Any]) -> "ReadOptions":
        """Take the options out of the settings of a config file."""
        names = [each.name for each in option_fields()]
        return cls(**{name: settings.pop(name) for name in names if name in settings})


def check_encoding(name: str) -> str:
    """Return the name by which Python knows an encoding of text."""
    try:
        "a".encode(name)  # which refuses what encodes no text, such as base64
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        known = ", ".join(_ENCODINGS)
        hint = suggest(name, _ENCODINGS)
        raise ParameterError(f"no encoding is called '{name}'{hint} (known: {known})") from None


def option_fields() -> list[Any]:
    """Return the fields that users set, in the order in which they are shown."""
    return [each for each in fields(ReadOptions) if each.metadata]


def option_table() -> list[Mapping[str, str]]:
    """Return each option with what it takes and what it means."""
    return [{"name": each.name, **each.metadata} for each in option_fields()]


ANYTHING = ReadOptions()
