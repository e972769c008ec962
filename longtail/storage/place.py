"""Places: a path of this machine, or a URL that is used like one.

`as_place` makes a `RemotePath` of `s3://bucket/data`: a Path whose names work as ever and whose
files are those of the storage. So whatever reads a folder of files reads it there as well. Objects
have no folders of their own: a prefix is one as long as something lies under it.

A Path keeps only one of the two slashes of a URL; `as_place` knows such a path all the same. A URL
of files of this machine (`file:///data`) becomes their path.
"""

import errno
import os
import re
import stat
from collections.abc import Generator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

from longtail.errors import ParameterError
from longtail.storage import remote

HERE = ("file", "local")  # schemes of files of this machine
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: C: is a drive
_MAGIC = re.compile(r"[*?\[]")

if TYPE_CHECKING:
    _Base = Path
else:
    _Base = type(Path())


def as_place(path: str | Path) -> Path:
    """Return the path, or what reads and writes at the URL that it is."""
    if isinstance(path, RemotePath):
        return path
    url = path if isinstance(path, str) else _find_url(path)
    found = _URL.match(url)
    if found is None:
        return Path(path)
    if found[1].lower() in HERE:
        return Path(unquote(urlsplit(url).path))
    _check_secrets(url)
    return RemotePath(url)


def is_there(path: Path) -> bool:
    """Return whether something bears this name, be it a link that leads nowhere."""
    return path.exists() if isinstance(path, RemotePath) else os.path.lexists(path)


def _find_url(path: Path) -> str:
    """Return a path as it was given, with both slashes if it was a URL."""
    first, *rest = path.parts or ("",)
    if not (rest and _SCHEME.fullmatch(first)) or Path(first).exists():
        return str(path)
    return f"{first}//{'/' if first.lower().rstrip(':') in HERE else ''}{'/'.join(rest)}"


def _check_secrets(url: str) -> None:
    """Refuse what would stand in messages, logs and cards."""
    scheme = url.partition(":")[0]
    host = url.partition("://")[2].partition("/")[0]
    if ":" in host.rpartition("@")[0]:
        raise ParameterError(
            f"a URL of {scheme}:// holds a password, which would be seen in messages and cards; "
            "leave it out and give it to the storage by its own settings (see the guide to storage)"
        )
    if scheme.startswith("http") and "?" in url:
        raise ParameterError(
            f"a URL of {scheme}:// holds a question mark, as signed ones do, and would be seen in "
            "messages and cards; download the file, or name it by the URL of its storage"
        )


class RemotePath(_Base):
    """A file or folder of a storage, named by its URL."""

    def __str__(self) -> str:
        """Return the URL."""
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    def __fspath__(self) -> str:
        """Return the URL, which opens nothing on this machine."""
        return str(self)

    def __repr__(self) -> str:
        """Return the URL as Python writes it."""
        return f"RemotePath({str(self)!r})"

    # -- what is there ------------------------------------------------------------------------

    def stat(self, **_: Any) -> os.stat_result:
        """Return size and kind of a file or folder; FileNotFoundError without one."""
        facts = remote.find(str(self))
        if facts is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(self))
        kind = stat.S_IFDIR if facts["type"] == "directory" else stat.S_IFREG
        return os.stat_result((kind | 0o600, 0, 0, 1, 0, 0, facts.get("size") or 0, 0, 0, 0))

    def exists(self, **_: Any) -> bool:
        """Return whether there is a file of this name, or anything under it."""
        return remote.find(str(self)) is not None

    def is_file(self, **_: Any) -> bool:
        """Return whether there is a file of this name."""
        return (remote.find(str(self)) or {}).get("type") == "file"

    def is_dir(self, **_: Any) -> bool:
        """Return whether files lie under this name."""
        return (remote.find(str(self)) or {}).get("type") == "directory"

    def is_symlink(self) -> bool:
        """Return False: a storage has no links."""
        return False

    def iterdir(self) -> Generator[Self, None, None]:
        """Yield what lies right under this name."""
        for name in remote.list_names(str(self)):
            yield self / name

    def glob(self, pattern: str) -> Generator[Self, None, None]:
        """Yield what lies right under this name and has a name of the pattern."""
        with suppress(FileNotFoundError):
            yield from [each for each in self.iterdir() if fnmatch(each.name, pattern)]

    def list_files(self) -> dict[str, tuple[int, str]]:
        """Return size and stamp of all files under this name, by their names there."""
        return remote.list_files(str(self))

    def match_files(self) -> list["RemotePath"]:
        """Return the files that this name describes as a pattern, sorted; none if it is none."""
        if not _MAGIC.search(str(self)):
            return []
        return [RemotePath(url) for url in remote.match(str(self))]

    # -- contents -----------------------------------------------------------------------------

    def open(self, mode: str = "rb", *_: Any, **__: Any) -> Any:
        """Open a file for reading bytes, from any place of it."""
        if mode != "rb":
            raise ValueError(f"{self}: a file of a storage is only read; got mode '{mode}'")
        return remote.open_file(str(self))

    def read_start(self, most: int) -> bytes:
        """Return the contents of a small file, or the first bytes of one that is larger."""
        return remote.read_start(str(self), most)

    def read_bytes(self) -> bytes:
        """Return the contents of a small file."""
        with self.open() as file:
            return bytes(file.read())

    def read_text(self, *_: Any, **__: Any) -> str:
        """Return the contents of a small file of UTF-8."""
        return self.read_bytes().decode()

    def put(self, file: Path) -> None:
        """Write a file of this machine here, whole or not at all."""
        remote.upload(file, str(self))

    def check_writable(self) -> None:
        """Raise the error that writing here would end in."""
        remote.check_writable(str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        remote.remove(str(self), missing_ok=missing_ok)

    def remove_all(self) -> None:
        """Remove all that lies under this name."""
        remote.remove_all(str(self))

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Do nothing: what is put under a name makes it a folder."""

    def absolute(self) -> Self:
        """Return the path itself: a URL depends on no working folder."""
        return self

    def resolve(self, *_: Any, **__: Any) -> Self:
        """Return the path itself: a storage has no links."""
        return self
