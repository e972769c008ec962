"""Source: one input file or stream, plain or packed, read in blocks of whole lines, or as JSON.

What a hostile or broken file can cost is bounded here: a line holds at most `MAX_LINE` bytes, and
a packed file that unpacks to more than `BOMB_BYTES` at more than `BOMB_RATIO` times its size is
refused (real texts and feature rows pack to between a third and a twentieth). Devices, sockets and
pipes into which nothing writes are refused before a byte of them is waited for.

Whatever the encoding of a text, blocks are UTF-8: others are converted as they are read. A file
that is ASCII for long and then Western European is found out where that begins.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from longtail.data.encoding import UTF8, WESTERN, guess_encoding, looks_western
from longtail.errors import DataError
from longtail.reading import check_encoding
from longtail.storage import RemotePath, as_place

BLOCK = 1 << 23
HEAD = 1 << 16
MAX_LINE = 1 << 28
BOMB_BYTES = 1 << 28
BOMB_RATIO = 100

PACKERS = {  # by the first bytes of a file, how it was packed
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
# Formats that are no text, whatever their bytes look like.
_BINARY = (b"PAR1", b"PK\x03\x04")
_NO_FILES = {
    stat.S_IFDIR: "is a folder; give one of its files",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
}
_JSON_TYPES = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
# Twice as quick as json.loads on short lines.
_decode_json = json.JSONDecoder().raw_decode


class Source:
    """An input that is read once, from start to end.

    Attributes:
        path: the file, or a name such as `<stdin>` for a stream; stands in every error.
        head: the first bytes, unpacked and as UTF-8, to recognize the format by.
        encoding: that of the text; may become another while it is read.
        is_whole: whether the head is all there is.
    """

    def __init__(self, file: str | Path | BinaryIO, encoding: str | None = None) -> None:
        """Open a file, or take a stream as it is, and read the head; "-" is standard input."""
        self._opened: BinaryIO | None = None
        self._unpack: BinaryIO | None = None
        self._packer: str | None = None
        self._convert: codecs.IncrementalDecoder | None = None
        self._unpacked = 0
        self._is_given = encoding is not None
        self.encoding = UTF8 if encoding is None else check_encoding(encoding)
        self._is_foreign = False  # letters that only UTF-8 makes sense of have been read
        self.is_whole = False
        if str(file) == "-":
            file = open_stdin()
        try:
            self.path, self._packed = self._start(file)
            self._packer = PACKERS.get(self._packed.prefix)
            if self._packer is not None:
                self._unpack = _open_packed(self._packed, self._packer)
            self.head = self._read_head()
        except DataError:
            self.close()
            raise

    def _start(self, file: str | Path | BinaryIO) -> tuple[Path, "_Counted"]:
        """Open a file if it is not open yet, and read its first bytes."""
        begin, path = b"", as_place(file) if isinstance(file, str | Path) else _stream_name(file)
        if isinstance(file, io.TextIOBase):
            raise DataError("is opened as text; open it in binary mode, as 'rb'", path=path)
        if isinstance(file, str | Path):
            self._opened, begin = _open(path)
        stream = self._opened or cast(BinaryIO, file)
        self._is_stream = self._opened is None or not self._opened.seekable()
        try:
            return path, _Counted(stream, self._is_stream, begin)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", path=path) from None

    def __enter__(self) -> "Source":
        """Return the source itself; it is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, if this source opened one."""
        self.close()

    def close(self) -> None:
        """Close the file, if this source opened one."""
        if self._opened is not None:
            self._opened.close()

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of whole lines, each line closed by a line feed."""
        open_line: list[bytes] = []
        n_lines = 0
        # The head goes out before more is read: whoever feeds a stream may wait for the answer.
        for block in chain([self.head], iter(lambda: self._read(BLOCK), b"")):
            cut = block.rfind(b"\n") + 1
            if cut:
                whole = b"".join([*open_line, block[:cut]])
                open_line = []
                yield whole
                n_lines += whole.count(b"\n")
            open_line.append(block[cut:])
            if sum(map(len, open_line)) > MAX_LINE:
                raise DataError(
                    f"the line is longer than {MAX_LINE >> 20} MiB; is this a data file?",
                    path=self.path,
                    line=n_lines + 1,
                )
        last = b"".join(open_line)
        if last:
            yield last if last.endswith(b"\n") else last + b"\n"

    def lines(self, *, exact: bool = False) -> Iterator[tuple[int, list[str]]]:
        """Yield blocks of decoded lines, each with the number of its first line.

        A carriage return before a line feed belongs to the line end, unless `exact`.
        """
        number = 1
        for block in self.blocks():
            text = self._decode(block, number)
            if not exact and "\r" in text:
                text = text.replace("\r\n", "\n")
            lines = text.split("\n")
            lines.pop()
            yield number, lines
            number += len(lines)

    def seekable(self) -> BinaryIO:
        """Return the whole content as a file that can be searched (Parquet needs that)."""
        if self._opened is not None and self._unpack is None and self._opened.seekable():
            self._opened.seek(0)
            return self._opened
        content = io.BytesIO(self.head)
        content.seek(0, io.SEEK_END)
        while block := self._read(BLOCK):
            content.write(block)
        content.seek(0)
        return content

    def _read(self, size: int) -> bytes:
        """Read up to `size` unpacked bytes as UTF-8, none only at the end."""
        while True:
            block = self._read_unpacked(size)
            if self._convert is None:
                return block
            text = self._decode_part(block)
            if text or not block:
                return text.encode("utf-8", "surrogatepass")

    def _read_unpacked(self, size: int) -> bytes:
        try:
            block = (self._unpack or self._packed).read(size)
        except EOFError:
            raise self._cut_off() from None
        except (zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise self._damaged(str(error)) from None
        except OSError as error:
            # The unpackers of bzip2 and zstd have no errors of their own.
            if self._packer is not None and error.strerror is None:
                raise self._damaged(str(error).partition(":")[0]) from None
            raise DataError(f"cannot be read: {error.strerror}", path=self.path) from None
        self._unpacked += len(block)
        if self._unpack is not None:
            check_unpacked(self._unpacked, self._packed.count, self.path)
        return block

    def _cut_off(self) -> DataError:
        return DataError(
            f"the {self._packer} file is cut off; copy or download it again", path=self.path
        )

    def _damaged(self, reason: str) -> DataError:
        return DataError(f"the {self._packer} file is damaged ({reason})", path=self.path)

    def _decode_part(self, block: bytes) -> str:
        """Decode a block of an encoding other than UTF-8, which may end within a character."""
        try:
            return self._convert.decode(block, final=not block) if self._convert else ""
        except UnicodeDecodeError as error:
            raise DataError(
                f"not {self.encoding}: {error.reason}; give the encoding it has (--encoding)",
                path=self.path,
            ) from None

    def _decode(self, block: bytes, first_line: int) -> str:
        if self.encoding == WESTERN and self._convert is None:
            return block.decode(WESTERN, "replace")
        try:
            text = block.decode()
            self._is_foreign |= not text.isascii()
            return text
        except UnicodeDecodeError as error:
            # What was ASCII so far can still be anything that ASCII is a part of.
            if not (self._is_given or self._is_foreign) and looks_western(block):
                self.encoding = WESTERN
                return block.decode(WESTERN)
            raise DataError(
                f"not UTF-8: byte 0x{block[error.start]:02x}; give the encoding that the file has, "
                "such as --encoding cp1252 (in Python encoding='cp1252')",
                path=self.path,
                line=first_line + block.count(b"\n", 0, error.start),
            ) from None

    def _read_head(self) -> bytes:
        """Read enough to recognize the format; from a stream no more than it already offers."""
        head = b""
        while self._wants_more(head):
            block = self._read(HEAD - len(head) if len(head) < HEAD else len(head))
            if not block:
                self.is_whole = True
                break
            head += block
        head = self._as_utf8(head)
        if not head.strip():
            raise DataError(
                "the file is empty" if len(head) < HEAD else "the file starts with blanks only",
                path=self.path,
            )
        return head

    def _wants_more(self, head: bytes) -> bool:
        """Return whether the head is to go on: as far as the end of a first object of JSON."""
        begin = head.lstrip()
        if len(head) < HEAD:
            return not self._is_stream or b"\n" not in begin
        return begin.startswith(b"{") and b"\n" not in begin and len(head) <= MAX_LINE

    def _as_utf8(self, head: bytes) -> bytes:
        """Find the encoding, and return the head as UTF-8; what follows will be converted, too."""
        if head.startswith(_BINARY):
            return head
        if not self._is_given:
            self.encoding = guess_encoding(head)
        if self.encoding not in (UTF8, "utf-8-sig"):
            self._convert = codecs.getincrementaldecoder(self.encoding)()
            return self._decode_part(head).encode("utf-8", "surrogatepass")
        self.encoding = UTF8
        return head.removeprefix(codecs.BOM_UTF8)


def open_stdin() -> BinaryIO:
    """Return standard input, to read documents from."""
    if sys.stdin is None:
        raise DataError("standard input is closed; name a file instead of -")
    return sys.stdin.buffer


def _open_packed(packed: "_Counted", packer: str) -> BinaryIO:
    """Return what unpacks a file while it is read."""
    file = cast(BinaryIO, packed)
    if packer == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    if packer == "bzip2":
        return cast(BinaryIO, bz2.BZ2File(file))
    if packer == "xz":
        return cast(BinaryIO, lzma.LZMAFile(file))
    import pyarrow as pa  # a fifth of a second, and few need it

    return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"))


def find_file(folder: Path, name: str) -> Path | None:
    """Return the file of that name, plain or packed."""
    plain = folder / drop_packed(name)
    paths = [plain.with_name(plain.name + ending) for ending in ("", *PACKED_ENDINGS)]
    if isinstance(folder, RemotePath):  # one question, not five
        there = set(folder.iterdir())
        return next((path for path in paths if path in there), None)
    return next((path for path in paths if path.is_file()), None)


def drop_packed(name: str) -> str:
    """Return the name of a file without the ending that says how it is packed."""
    for ending in PACKED_ENDINGS:
        name = name.removesuffix(ending)
    return name


class _Counted:
    """A readable file that counts what was taken from it and shows its first bytes.

    Attributes:
        prefix: the bytes by which packed files are known, or two bytes of any other.
        count: how many bytes were taken.
    """

    closed = False  # for pyarrow, which asks

    def __init__(self, file: BinaryIO, is_stream: bool, begin: bytes = b"") -> None:
        # A stream gives what it has at once, so that a line typed is a line answered.
        self._read = getattr(file, "read1", file.read) if is_stream else file.read
        self._rest = begin if len(begin) > 1 else begin + file.read(2 - len(begin))
        self.prefix = self._rest[:2]
        for magic in PACKERS:
            if magic[:2] == self.prefix:
                self._rest += file.read(max(len(magic) - len(self._rest), 0))
                self.prefix = self._rest[: len(magic)]
        self.count = 0

    def readable(self) -> bool:
        """Say that this can be read."""
        return True

    def close(self) -> None:
        """Leave the file open: it is the source's, or a stream of somebody else's."""

    def read(self, size: int = -1) -> bytes:
        end = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:end], self._rest[end:]
        data = data or self._read(size)
        self.count += len(data)
        return data


def is_bomb(unpacked: int, packed: int) -> bool:
    """Return whether so many bytes out of so few are more than real data ever gives."""
    return unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * packed


def check_unpacked(unpacked: int, packed: int, path: Path) -> None:
    """Raise a DataError when a file unpacks to more than real data ever does."""
    if is_bomb(unpacked, packed):
        raise DataError(
            f"unpacks to more than {BOMB_RATIO} times its size and {BOMB_BYTES >> 20} MiB; "
            "this looks like a decompression bomb. Unpack it first if you trust it",
            path=path,
        )


def _open(path: Path) -> tuple[BinaryIO, bytes]:
    """Open a file, or a pipe that something writes into; return also what had to be read of it."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind in _NO_FILES:
            raise DataError(_NO_FILES[kind], path=path)
        if isinstance(path, RemotePath):
            return cast(BinaryIO, path.open("rb")), b""
        # Without this flag, opening a pipe waits until something writes into it.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        begin = _await_writer(number, path) if kind == stat.S_IFIFO else b""
        return os.fdopen(number, "rb"), begin
    except (FileNotFoundError, ValueError):  # a name with a zero byte
        raise DataError("no such file or folder", path=path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from None


def _await_writer(pipe: int, path: Path) -> bytes:
    """Return what a pipe holds, perhaps nothing yet; refuse one into which nothing writes."""
    try:
        begin = os.read(pipe, HEAD)
    except BlockingIOError:
        begin = None
    if begin == b"":
        os.close(pipe)
        raise DataError(
            "nothing writes into this pipe; start what writes first, or give a file", path=path
        )
    os.set_blocking(pipe, True)
    return begin or b""


def _stream_name(stream: BinaryIO) -> Path:
    name = getattr(stream, "name", None)
    return Path(name if isinstance(name, str) else "<stdin>")


# -- JSON in lines --------------------------------------------------------------------------------


def parse_json(text: str, path: Path | None, line: int) -> Any:
    """Parse `text`, which stands on line `line` of `path`."""
    try:
        value, end = _decode_json(text.lstrip())
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


def parse_object(text: str, path: Path | None, line: int) -> dict[str, Any]:
    """Parse `text` as a JSON object."""
    value = parse_json(text, path, line)
    if type(value) is not dict:
        raise DataError(
            f"each line must be a JSON object; got {name_json_type(value)}", path=path, line=line
        )
    return value


def name_json_type(value: Any) -> str:
    """Return what JSON calls the type of a value."""
    return _JSON_TYPES.get(type(value), type(value).__name__)


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mend(part) for part in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(part) for key, part in value.items()}
    return value
