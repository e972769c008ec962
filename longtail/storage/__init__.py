"""Storage by URL, through fsspec: places that are no paths of this machine."""

from longtail.storage.place import RemotePath, as_place, is_there

__all__ = ["RemotePath", "as_place", "is_there"]
