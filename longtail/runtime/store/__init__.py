"""Model folders on disk: their files, the checks on reading, atomic writes."""

from longtail.runtime.store.atomic import identify
from longtail.runtime.store.folder import (
    Files,
    Verified,
    check_writable,
    read_card,
    read_folder,
    verify_folder,
    write_folder,
)
from longtail.runtime.store.lock import locked

__all__ = [
    "Files",
    "Verified",
    "check_writable",
    "identify",
    "locked",
    "read_card",
    "read_folder",
    "verify_folder",
    "write_folder",
]
