"""What every format has in common: gzip, encodings, line ends, and limits."""

import bz2
import gzip
import io
import lzma
import os
import socket
import threading
from typing import ClassVar

import pyarrow as pa
import pytest

from longtail.data import source as source_module
from longtail.data.source import Source
from longtail.errors import DataError


def pack_zstd(content):
    return pa.compress(content, "zstd", asbytes=True)


PACKERS = [bytes, gzip.compress, bz2.compress, lzma.compress, pack_zstd]


def lines_of(file, encoding=None):
    with Source(file, encoding) as source:
        return [line for _, lines in source.lines() for line in lines]


def message_of(file):
    with pytest.raises(DataError) as caught:
        lines_of(file)
    return str(caught.value)


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize(
    "content", [b"a\nb\n\nc\n", b"\xef\xbb\xbfa\nb\n\nc", b"a\r\nb\r\n\r\nc\r\n"]
)
def test_lines_of_plain_and_packed_files(tmp_path, content, pack):
    path = tmp_path / "x"
    path.write_bytes(pack(content))
    assert lines_of(path) == ["a", "b", "", "c"]
    assert lines_of(io.BytesIO(pack(content))) == ["a", "b", "", "c"]


def test_other_line_separators_do_not_end_a_line(tmp_path):
    path = tmp_path / "x"
    path.write_text("a\u2028b\x0cc\x85d\n")
    assert lines_of(path) == ["a\u2028b\x0cc\x85d"]


def test_two_gzip_members_are_one_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\nd\n"))
    assert lines_of(path) == ["a", "bc", "d"]


def test_a_stream_is_answered_before_it_ends():
    class Typed(io.RawIOBase):
        parts: ClassVar = [b"a\n", b"b\n"]

        def readable(self):
            return True

        def readinto(self, buffer):
            if not self.parts:
                pytest.fail("read on although a line was there")
            part = self.parts.pop(0)
            buffer[: len(part)] = part
            return len(part)

    lines = Source(io.BufferedReader(Typed())).lines()
    assert next(lines) == (1, ["a"])
    assert next(lines) == (2, ["b"])


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    assert message_of(path) == f"{path}: the file is empty"


def test_a_missing_file_and_a_folder(tmp_path):
    assert message_of(tmp_path / "no") == f"{tmp_path / 'no'}: no such file or folder"
    assert message_of(tmp_path) == f"{tmp_path}: is a folder; give one of its files"


def test_a_stream_of_text_is_refused():
    refused = "<stdin>: is opened as text; open it in binary mode, as 'rb'"
    assert message_of(io.StringIO("text,labels\n")) == refused


def test_a_stream_is_called_by_its_name():
    assert message_of(io.BytesIO(b"")) == "<stdin>: the file is empty"


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (gzip.compress, "the gzip file is cut off; copy or download it again"),
        (bz2.compress, "the bzip2 file is cut off; copy or download it again"),
        (lzma.compress, "the xz file is cut off; copy or download it again"),
        (pack_zstd, "the zstd file is damaged (Truncated compressed stream)"),
    ],
)
def test_a_truncated_file(tmp_path, pack, message):
    path = tmp_path / "x"
    path.write_bytes(pack(bytes(range(32, 120)) * 1000)[:-12])
    assert message_of(path) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("encoding", "found"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("utf-32", "utf-32"),
        ("cp1252", "cp1252"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_encodings(tmp_path, encoding, found, pack):
    lines = ["a line of words", "K\u00e4se f\u00fcr 5 \u20ac", "\u201cyes\u201d", *["more"] * 9000]
    path = tmp_path / "x"
    path.write_bytes(pack("\n".join(lines).encode(encoding)))
    with Source(path) as source:
        assert [line for _, block in source.lines() for line in block] == lines
        assert source.encoding == found
    assert lines_of(path, found) == lines


def test_latin_1_is_the_part_of_cp1252_that_it_shares(tmp_path):
    path = tmp_path / "x"
    path.write_bytes("K\u00f6ln und \u00dcbung\n".encode("latin-1"))
    assert lines_of(path) == lines_of(path, "latin-1") == ["K\u00f6ln und \u00dcbung"]


def test_a_character_that_two_blocks_share(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "BLOCK", 3)
    monkeypatch.setattr(source_module, "HEAD", 5)
    path = tmp_path / "x"
    path.write_bytes("ab\u20acd\ne\U0001f37af\n".encode("utf-16"))
    assert lines_of(path) == ["ab\u20acd", "e\U0001f37af"]


def test_utf16_that_is_cut(tmp_path):
    path = tmp_path / "x"
    path.write_bytes("abc\n".encode("utf-16")[:-1])
    assert message_of(path) == (
        f"{path}: not utf-16: truncated data; give the encoding it has (--encoding)"
    )


def test_a_damaged_gzip_file(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00" + b"garbage" * 20)
    assert message_of(path).startswith(f"{path}: the gzip file is damaged (")


def test_damaged_utf8(tmp_path):
    path = tmp_path / "x"
    path.write_bytes("schön, größer\nk".encode() + b"\xf6ln\n")
    assert message_of(path) == (
        f"{path}:2: not UTF-8: byte 0xf6; give the encoding that the file has, "
        "such as --encoding cp1252 (in Python encoding='cp1252')"
    )


def test_a_line_without_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "BLOCK", 1 << 16)
    monkeypatch.setattr(source_module, "MAX_LINE", 1 << 20)
    path = tmp_path / "x"
    path.write_bytes(b"a\nb\n" + b"x" * (1 << 21))
    assert message_of(path) == f"{path}:3: the line is longer than 1 MiB; is this a data file?"


def test_a_gzip_bomb_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "BOMB_BYTES", 1 << 20)
    monkeypatch.setattr(source_module, "BLOCK", 1 << 16)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"__label__a b\n" * 1_000_000))
    assert message_of(path) == (
        f"{path}: unpacks to more than 100 times its size and 1 MiB; "
        "this looks like a decompression bomb. Unpack it first if you trust it"
    )


def test_devices_and_sockets_are_refused_at_once(tmp_path, monkeypatch):
    for device in ("/dev/zero", "/dev/null"):
        assert message_of(device) == f"{device}: is a device, not a file"
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("here")
        assert message_of("here") == "here: is a socket, not a file"
    assert message_of("a\0b") == "a\0b: no such file or folder"


def test_a_pipe_into_which_nothing_writes_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert message_of(pipe) == (
        f"{pipe}: nothing writes into this pipe; start what writes first, or give a file"
    )


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("waits", [False, True])
def test_a_pipe_is_read_like_a_file(pack, waits):
    """As the shell gives it for <(a command): by a number under /dev/fd."""
    reading, writing = os.pipe()
    content = pack(b"a\n" * 100_000)

    def write():
        with os.fdopen(writing, "wb") as file:
            file.write(content)

    writer = threading.Timer(0.2 if waits else 0, write)
    writer.start()
    try:
        assert lines_of(f"/dev/fd/{reading}") == ["a"] * 100_000
    finally:
        os.close(reading)
        writer.join()
