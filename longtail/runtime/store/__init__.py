"""Model folders on disk and at URLs: their files, the checks on reading, atomic writes."""

from longtail.runtime.store.copies import download_folder, fetch_folder, move_to, upload_folder
from longtail.runtime.store.folder import (
    Files,
    Verified,
    check_writable,
    read_card,
    read_folder,
    to_json,
    verify_folder,
    write_folder,
)
from longtail.runtime.store.lock import locked
from longtail.runtime.store.published import count_bytes, fetch, identify, read_digest

__all__ = [
    "Files",
    "Verified",
    "check_writable",
    "count_bytes",
    "download_folder",
    "fetch",
    "fetch_folder",
    "identify",
    "locked",
    "move_to",
    "read_card",
    "read_digest",
    "read_folder",
    "to_json",
    "upload_folder",
    "verify_folder",
    "write_folder",
]
