"""What a storage does with a URL: look up, list, read, write, remove, each until it succeeds.

fsspec knows the storages and is imported here only, and only for a URL. Whatever a storage raises
becomes a `StorageError` of one sentence, in which nothing of the storage's own text stands, as that
may hold credentials. What may pass (a network that is gone, a server that is busy) is tried again
after half a second and after two.
"""

import errno
import io
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from longtail.errors import MissingExtraError, ParameterError, StorageError, suggest

BLOCK = 1 << 23  # bytes that are asked for at once
WAITS = (0.5, 2.0)
# Here a file appears when all of it has come; elsewhere it is renamed then.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "http"}
OWN_EXTRA = {"s3", "s3a"}
_STAMPS = ("ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "size")

Result = TypeVar("Result")
USUAL = ("s3", "gs", "az", "hdfs", "file", "http", "https", "ftp", "sftp")  # of many storages


def connect(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and its path there."""
    scheme = url.partition(":")[0]
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError.of(f"{scheme}:// needs fsspec", "cloud") from None
    known = fsspec.available_protocols()
    if scheme not in known:
        raise ParameterError(f"{url}: there is no storage '{scheme}://'{suggest(scheme, USUAL)}")
    try:
        file_system, path = fsspec.url_to_fs(url)
    except ImportError as error:
        if scheme in OWN_EXTRA:
            raise MissingExtraError.of("s3:// needs s3fs", "cloud") from None
        raise MissingExtraError(
            f"{scheme}:// needs a package that is not installed ({error}); install it with pip"
        ) from None
    except Exception as error:
        if "libhdfs" in str(error) or "libjvm" in str(error):
            raise MissingExtraError(
                f"{scheme}:// needs Hadoop's client, which is not found here; install Java and "
                "Hadoop, and set JAVA_HOME, HADOOP_HOME and CLASSPATH (hadoop classpath --glob)"
            ) from None
        raise _translate(error, url) from None
    return file_system, path


def find(url: str) -> dict[str, Any] | None:
    """Return what a storage says of a file or folder; None if it is not there."""

    def look() -> dict[str, Any] | None:
        file_system, path = connect(url)
        file_system.invalidate_cache()
        try:
            return cast(dict[str, Any], file_system.info(path))
        except FileNotFoundError:
            return None

    return _patiently(look, url)


def list_names(url: str) -> list[str]:
    """Return the names of what lies right under a name."""

    def look() -> list[str]:
        file_system, path = connect(url)
        file_system.invalidate_cache()
        paths = [each.rstrip("/") for each in file_system.ls(path, detail=False)]
        # Some storages have an empty object that stands for the folder itself.
        return sorted({each.rpartition("/")[2] for each in paths if each != path.rstrip("/")})

    return _patiently(look, url)


def list_files(url: str) -> dict[str, tuple[int, str]]:
    """Return size, and what changes with the contents, of all files under a name, however deep."""

    def look() -> dict[str, tuple[int, str]]:
        file_system, path = connect(url)
        file_system.invalidate_cache()
        found = file_system.find(path, detail=True)
        begin = len(path.rstrip("/")) + 1
        return {
            name[begin:]: (
                int(facts.get("size") or 0),
                repr([str(facts.get(each)) for each in _STAMPS]),
            )
            for name, facts in found.items()
            if len(name) > begin
        }

    return _patiently(look, url)


def match(url: str) -> list[str]:
    """Return the URLs of the files that a pattern describes."""
    scheme = url.partition(":")[0]

    def look() -> list[str]:
        file_system, path = connect(url)
        file_system.invalidate_cache()
        found = file_system.glob(path, detail=True)
        files = sorted(each for each, facts in found.items() if facts["type"] == "file")
        return [each if "://" in each else f"{scheme}://{each.lstrip('/')}" for each in files]

    return _patiently(look, url)


def read_start(url: str, most: int) -> bytes:
    """Return the contents of a small file, or the first bytes of one that is larger."""

    def read() -> bytes:
        file_system, path = connect(url)
        return cast(bytes, file_system.cat_file(path, start=0, end=most))

    return _patiently(read, url)


def open_file(url: str) -> BinaryIO:
    """Open a file for reading."""
    return io.BufferedReader(_RemoteFile(url), BLOCK)


class _RemoteFile(io.RawIOBase):
    """A file of a storage; a read that fails is tried again from where it stood."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        self._stamp = self._look()
        self._file = _patiently(self._open, url)

    def _look(self) -> tuple[Any, ...]:
        """Return what changes with the contents."""
        facts = find(self._url)
        if facts is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", self._url)
        return tuple(facts.get(name) for name in _STAMPS)

    def _open(self) -> Any:
        file_system, path = connect(self._url)
        return file_system.open(path, "rb", block_size=BLOCK)

    def readable(self) -> bool:
        """Say that this can be read."""
        return True

    def seekable(self) -> bool:
        """Say whether it can be read from any place."""
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        self._at = int(self._file.seek(offset, whence))
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read what comes next; at the end, make sure that it is still the file of the start."""
        data = _patiently(lambda: self._read(len(buffer)), self._url)
        buffer[: len(data)] = data
        self._at += len(data)
        if not data and self._look() != self._stamp:
            raise StorageError(errno.EBUSY, "changed while it was read; read it again", self._url)
        return len(data)

    def _read(self, size: int) -> bytes:
        if self.seekable() and self._file.tell() != self._at:
            self._file.seek(self._at)
        return cast(bytes, self._file.read(size))

    def close(self) -> None:
        """Give back what the storage holds open."""
        if not self.closed:
            with suppress(Exception):
                self._file.close()
        super().close()


def upload(file: Path, url: str) -> None:
    """Write a file of this machine to a URL, whole or not at all."""

    def put() -> None:
        file_system, path = connect(url)
        if url.partition(":")[0] in OBJECT_STORES:
            file_system.put_file(str(file), path)
            return
        folder, _, name = path.rpartition("/")
        file_system.makedirs(folder, exist_ok=True)
        unfinished = f"{folder}/.{name}.tmp-{secrets.token_hex(4)}"
        file_system.put_file(str(file), unfinished)
        file_system.mv(unfinished, path)

    _patiently(put, url)


def remove(url: str, *, missing_ok: bool) -> None:
    """Remove a file."""

    def rm() -> None:
        file_system, path = connect(url)
        with suppress(*([FileNotFoundError] if missing_ok else [])):
            file_system.rm_file(path)

    _patiently(rm, url)


def remove_all(url: str) -> None:
    """Remove all that lies under a name."""

    def rm() -> None:
        file_system, path = connect(url)
        file_system.invalidate_cache()
        with suppress(FileNotFoundError):
            file_system.rm(path, recursive=True)

    _patiently(rm, url)


def check_writable(url: str) -> None:
    """Raise what writing at a URL would end in; an empty file is written beside it and removed."""
    folder, _, name = url.rpartition("/")
    is_bucket = folder.endswith(":/")  # beside which nothing can be written
    probe = f"{url if is_bucket else folder}/.{name}.probe-{secrets.token_hex(4)}"

    def try_it() -> None:
        file_system, path = connect(probe)
        if url.partition(":")[0] not in OBJECT_STORES:
            file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
        file_system.pipe_file(path, b"")
        with suppress(Exception):  # it may be ours to write and not to remove
            file_system.rm_file(path)

    _patiently(try_it, url)


# -- failures -----------------------------------------------------------------------------------


def _patiently(work: Callable[[], Result], url: str) -> Result:
    """Do what may fail for a while, and raise what stays wrong in our words."""
    for wait in (*WAITS, None):
        try:
            return work()
        except (ParameterError, MissingExtraError, StorageError):
            raise
        except Exception as error:
            found = _translate(error, url)
            if wait is None or not _may_pass(error):
                raise found from None
            time.sleep(wait)
    raise AssertionError  # the last turn returns or raises


_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")
_NO_ANSWER = ("Timeout", "Connect", "gaierror", "Endpoint", "HTTPClientError", "ServerDisconnected")


def _names(error: BaseException) -> list[str]:
    """Return the classes of an error and of what led to it."""
    found: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(found) < 50:
        found += [each.__name__ for each in type(cause).__mro__]
        cause = cause.__cause__ or cause.__context__
    return found


def _is_silent(error: BaseException) -> bool:
    """Return whether nothing answered, as far as the names of errors tell."""
    return any(part in name for name in _names(error) for part in _NO_ANSWER)


def _may_pass(error: BaseException) -> bool:
    lasting = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError)
    if isinstance(error, lasting) or "FileExpired" in _names(error) or _is_full(error):
        return False
    if any(name in _NO_CREDENTIALS for name in _names(error)):
        return False
    return _is_silent(error) or isinstance(error, OSError)


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _translate(error: Exception, url: str) -> Exception:
    """Return what went wrong, in a sentence of ours."""
    names = _names(error)
    scheme = url.partition(":")[0]
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no such file, folder or bucket", url)
    if any(name in _NO_CREDENTIALS for name in names):
        number, reason = errno.EACCES, f"no credentials for {scheme}:// were found; set them first"
    elif isinstance(error, PermissionError):
        number, reason = (
            errno.EACCES,
            "the storage refuses access; check the credentials, and what they may do there",
        )
    elif "FileExpired" in names:
        number, reason = errno.EBUSY, "changed while it was read; read it again"
    elif _is_full(error):
        number, reason = errno.ENOSPC, "no space left on device"
    elif _is_silent(error):
        number, reason = (
            errno.EIO,
            "the storage does not answer; check its address (endpoint) and the network",
        )
    else:
        number, reason = errno.EIO, f"the storage failed ({type(error).__name__})"
    return StorageError(number, reason, url)
