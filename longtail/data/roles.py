"""Which files of a folder, or of a pattern, are the training and the test split, by their names."""

import glob
import re
from functools import partial
from pathlib import Path

from longtail.data.annif import find_full_texts
from longtail.data.documents import Format, choose_format, recognize, refuse_plain
from longtail.data.labels import NO_LABELS
from longtail.data.source import Source
from longtail.errors import DataError
from longtail.reading import ReadOptions
from longtail.storage import RemotePath

PACKED = r"(\.gz|\.bz2|\.xz|\.zst)?"
_ROLES = {
    "train": ("train", "trn", "training"),
    "test": ("test", "tst"),
    "other": ("valid", "validation", "val", "dev"),
}
_BESIDE = re.compile(
    rf"(label_names\.(txt|tsv)|lbl\.json|filter_labels_\w+\.txt|feature_names\.txt){PACKED}"
)


def match(pattern: Path) -> list[Path]:
    """Return the files that a pattern names, none if it is no pattern."""
    if not glob.has_magic(str(pattern)):
        return []
    files: list[Path] = []
    if isinstance(pattern, RemotePath):
        files += pattern.match_files()
    else:
        # A pattern may begin anywhere, which Path.glob does not know.
        found = glob.glob(str(pattern), recursive=True)  # noqa: PTH207
        files += [file for file in sorted(map(Path, found)) if file.is_file()]
    if not files:
        raise DataError("no file has a name of this pattern", path=pattern)
    return files


def list_files(folder: Path) -> list[Path]:
    """Return the files of a folder, but for hidden ones."""
    try:
        return sorted(file for file in folder.iterdir() if file.is_file() and file.name[0] != ".")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=folder) from None


def list_data_files(folder: Path) -> list[Path]:
    """Return the files of a folder but for those that name labels, features or excluded pairs."""
    return _without_names(list_files(folder))


def _without_names(files: list[Path]) -> list[Path]:
    return [file for file in files if not _BESIDE.fullmatch(file.name)]


def list_inside(folder: Path) -> dict[str, list[Path]]:
    """Return the files in folders that are called train or test, by role."""
    folders = sorted(each for each in folder.iterdir() if each.is_dir())
    return {role: list_files(each) for each in folders if (role := find_role(each)) is not None}


def find_role(file: Path) -> str | None:
    """Return the split that a file or folder is by its name: train, test, other, or None."""
    words = re.split(r"[^a-z]+", file.name.lower())
    return next((role for role, names in _ROLES.items() if set(names) & set(words)), None)


def find_roles(
    folder: Path, files: list[Path], options: ReadOptions, *, are_parts: bool = False
) -> list[list[Path]]:
    """Return the files of the training and of the test split, if there is one, by their names.

    Files without such a name are parts of one split if the user says so, by a pattern.
    """
    candidates = _without_names(files)
    choose = partial(_choose, options=options, are_parts=are_parts)
    inside = {} if are_parts else list_inside(folder)
    train, test = (
        choose([f for f in candidates if find_role(f) == role] or inside.get(role, []), name)
        for role, name in (("train", "training"), ("test", "test"))
    )
    if not train and test and not are_parts:
        raise DataError(
            f"has a test split but no training split; to use {test[0].name} alone, give its path",
            path=folder,
        )
    if not train:
        others = [f for f in candidates if find_role(f) is None or are_parts]
        readable = [f for f in others if are_parts or _fault(f, options) is None]
        train, test = choose(readable, "training"), []
    if not train:
        raise DataError(
            "no data found in this folder; name the files train and test, "
            "for example train.jsonl and test.jsonl",
            path=folder,
        )
    return [train, test] if test else [train]


def _choose(
    files: list[Path],
    split: str,
    *,
    options: ReadOptions,
    are_parts: bool,
) -> list[Path]:
    """Return the files that can be read, or raise an error that says why there are none."""
    faults = {file: _fault(file, options) for file in files}
    readable = [file for file, fault in faults.items() if fault is None]
    if len(readable) > 1 and not (are_parts or look_like_parts(readable)):
        raise DataError(
            f"both {readable[0].name} and {readable[1].name} could be the {split} split; "
            "move one of them away, or give the path of a file, or a pattern that names them all",
            path=readable[0].parent,
        )
    for fault in faults.values():
        if fault is not None and (not readable or are_parts):
            raise fault
    return readable


def look_like_parts(files: list[Path]) -> bool:
    """Return whether the names of files say that they are parts of one split."""
    if all(file.suffix == ".parquet" for file in files):
        return True
    return len({re.sub(r"\d+", "0", file.name) for file in files}) == 1


def _fault(file: Path, options: ReadOptions) -> DataError | None:
    """Return why a file cannot be a split of a data set."""
    try:
        with Source(file, options.encoding) as source:
            recognize_labelled(source, options)
            return None
    except DataError as error:
        return error


def recognize_labelled(source: Source, options: ReadOptions) -> Format:
    """Return the format of a file, which must be one that holds labels."""
    form = choose_format(options.format) or recognize(source, options)
    if form is Format.MATRIX:
        raise DataError(NO_LABELS, path=source.path)
    if form is Format.PLAIN:
        raise refuse_plain(source)
    return form


def find_full_texts_of_splits(
    folder: Path, files: list[Path]
) -> list[list[tuple[Path, Path | None]]]:
    """Return the texts of each split with their labels; nothing if there are no such texts."""
    splits = [_full_texts(files)]
    if not splits[0]:
        inside = list_inside(folder)
        splits = [_full_texts(inside[role]) for role in ("train", "test") if role in inside]
    return splits if all(splits) else []


def _full_texts(files: list[Path]) -> list[tuple[Path, Path | None]]:
    return find_full_texts([file for file in _without_names(files) if find_role(file) is None])
