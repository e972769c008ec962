"""Crafted model folders: valid ones in which a few values were changed and all hashes made anew.

What is changed is chosen from the models' own schemas, so that a new array or value is attacked as
soon as it is declared. Compiled code runs with bounds checks: what reads beside an array is an
IndexError and not a lucky number.
"""

import hashlib
import json
import resource
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from attack.case import Attack, Attempt, Outcome
from attack.planted import TEXTS, plant_rows, plant_texts
from longtail.errors import ModelFileError, ParameterError
from longtail.models import KNN, Model, get_model_class, load_model
from longtail.runtime.schema import Schema, Value
from longtail.runtime.store import Files, write_folder

N_CHANGES = (1, 1, 1, 2, 3)  # how many may come together
MOST_MEMORY = 12 << 30  # of addresses; torch alone reserves several GiB
NUMBERS = (-1, 0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 10**12, 10**40)
FLOATS = (
    0.0,
    -0.0,
    0.5,
    -1.0,
    1e-40,
    1e6,
    -1e6,
    1e7,
    1e30,
    3.4e38,
    1e308,
    float("inf"),
    float("nan"),
)
OTHERS = (None, True, False, "", "tfidf", "words", "dense", "pca", "linear", [], [[]], {}, {"a": 1})
STRANGE = ("", "\0", "\udc80", "a b", "a b c", "<unknown>", "\u202e", "x" * 10**5)
DTYPES = (
    *(np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8),
    *(np.uint64, np.uint32, np.uint16, np.uint8, np.bool_),
)

PUT_IN = (b"\0", b"\xff" * 9, b"[" * 100_000, b'"', b"9" * 5000, b"1e999", b"NaN", b"\n" * 1000)
BOUNDS_CHECKED = {
    "NUMBA_BOUNDSCHECK": "1",
    "NUMBA_CACHE_DIR": "build/boundscheck",
    "OMP_NUM_THREADS": "1",  # torch's threads wait for each other, for ever on busy cores
}
SECONDS = 120.0  # compiling with bounds checks, at the first use of a function, is slow
MANIFEST = "manifest.json"
DAMAGED = ("linear flat", "knn", "fusion")

# Small forms of every way in which a model can be built and stored.
FORMS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "linear tree": ("linear", "rows", {"flat": 0, "branching": 3, "max_leaf": 4, "trees": 2}),
    "linear flat": ("linear", "texts", {}),
    "knn": ("knn", "texts", {}),
    "knn in glas": ("knn", "rows", {"space": "glas"}),
    "forest": ("forest", "rows", {"n_trees": 3, "min_split": 2, "share": 0.3}),
    "forest of clusters": ("forest", "rows", {"cuts": "clusters", "n_trees": 8, "min_split": 2}),
    "forest of texts": ("forest", "texts", {"n_trees": 3}),
    "glas": ("glas", "rows", {"dim": 8, "epochs": 1}),
    "glas of texts": ("glas", "texts", {"dim": 8, "epochs": 1}),
    "mnn labels": ("mnn", "rows", {"dim": 8, "epochs": 1, "rank": "labels"}),
    "mnn": ("mnn", "rows", {"dim": 8, "epochs": 1, "rank": "neighbours", "embedding": "residual"}),
    "dxml": ("dxml", "rows", {"dim": 8, "epochs": 1, "walks": 2, "clusters": 4, "searched": 2}),
    "rank-ae": ("rank-ae", "rows", {"dim": 8, "word_dim": 8, "epochs": 1}),
    "lexical": ("lexical", "texts", {}),
    "attention-xml": (
        "attention-xml",
        "texts",
        {
            **{"hidden": 4, "head": "4,3", "word_dim": 4, "levels": 1, "branching": 4},
            **{"epochs": 1, "batch_size": 16},
        },
    ),
    "fusion": ("fusion", "rows", {"members": "linear,knn"}),
    "fusion of texts": ("fusion", "texts", {"members": "linear,knn"}),
}


def prepare(folder: Path) -> Attempt:
    """Train every form of every model."""
    attempt = prepare_forms(folder, list(FORMS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    return attempt


def prepare_forms(folder: Path, names: Sequence[str]) -> Attempt:
    """Train some forms."""
    originals = {name: _describe(_train(*FORMS[name])) for name in names}
    warnings.simplefilter("error", RuntimeWarning)  # of numpy; users would see it

    def attempt(random: Random) -> Outcome:
        original = originals[random.choice(sorted(originals))]
        files = Files(
            deepcopy(original.files.config),
            dict(original.files.arrays),
            {name: list(lines) for name, lines in original.files.texts.items()},
        )
        for _ in range(random.choice(N_CHANGES)):
            random.choice(CHANGES)(random, files, random.choice(original.parts))
        target = folder / "crafted"
        write_folder(target, files, overwrite=True)
        return use(target, random)

    return attempt


def use(path: Path, random: Random) -> Outcome:
    """Load a model and do all that one can do with it."""
    try:
        model = load_model(path)
    except ModelFileError:
        return "refused"
    documents = _make_documents(model, random)
    n_labels = len(model.label_names_)
    threshold = "auto" if model.calibration_ is not None and random.random() < 0.5 else None
    for k in (None, 1, n_labels + 1):
        top = model.predict(documents, k, threshold=threshold)
        assert np.isfinite(top.scores).all(), "scores that are not finite"
        assert -1 <= top.labels.min(initial=0) <= top.labels.max(initial=0) < n_labels
    if model.can_explain:
        weights = [term.weight for term in model.explain(documents[0], model.label_names_[0]).terms]
        assert np.isfinite(weights).all(), "weights that are not finite"
    try:
        model.check_updatable()
    except ParameterError:  # a sentence, as it should be
        return "answered"
    model.partial_fit(documents, [["new"], [model.label_names_[0]], [], []])
    model.predict(documents)
    return "answered"


def _make_documents(model: Model, random: Random) -> Any:
    """Return four documents: usual ones, an empty one, and one with all there is."""
    if model.trained_on == "texts":
        return [random.choice(TEXTS), " ".join(TEXTS[:50]), "", "nothing known"]
    rng = np.random.default_rng(random.getrandbits(32))
    rows = sp.random(4, model.n_features_, 0.2, "lil", np.float32, rng)
    if model.n_features_:
        rows[1], rows[2] = 1, 0
    return sp.csr_matrix(rows)


# -- damaged bytes --------------------------------------------------------------------------------


def prepare_damage(folder: Path) -> Attempt:
    """Save one model of each type."""
    for name in DAMAGED:
        _train(*FORMS[name]).save(folder / name)

    def attempt(random: Random) -> Outcome:
        target = folder / "damaged"
        rmtree(target, ignore_errors=True)
        copytree(folder / random.choice(DAMAGED), target)
        file = random.choice(sorted(target.iterdir()))
        file.write_bytes(damage_bytes(random, file.read_bytes()))
        if file.name != MANIFEST and random.random() < 0.8:
            _hash_again(target, file)
        return use(target, random)

    return attempt


def damage_bytes(random: Random, content: bytes) -> bytes:
    """Return bytes that differ: some changed, cut off, doubled, or put in."""
    place, end = sorted(random.randrange(len(content) + 1) for _ in range(2))
    choice = random.randrange(5)
    if choice == 0:
        return content[:place]
    if choice == 1:
        return content[:place] + content[end:]
    if choice == 2:
        return content[:end] + content[place:]
    if choice == 3:
        return content[:place] + random.choice(PUT_IN) + content[place:]
    changed = bytearray(content)
    if not changed:
        return b"x"
    near = len(content) if random.random() < 0.5 else min(len(content), 2000)  # where the header is
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(near)] = random.randrange(256)
    return bytes(changed)


def _hash_again(folder: Path, file: Path) -> None:
    """Let the manifest say what the file holds now."""
    content, manifest = file.read_bytes(), folder / MANIFEST
    found = json.loads(manifest.read_text(encoding="utf-8"))
    digest = hashlib.sha256(content).hexdigest()
    found["files"][file.name] = {"size": len(content), "sha256": digest}
    manifest.write_text(json.dumps(found), encoding="utf-8")


# -- the valid folders ----------------------------------------------------------------------------


class Part(NamedTuple):
    """A model, or a member of one, in a folder.

    Attributes:
        prefix: what the names of its arrays and texts begin with.
        path: where its values are in config.json.
        schema: what it must hold.
    """

    prefix: str
    path: Sequence[str]
    schema: Schema


class Original(NamedTuple):
    """The files of a valid model, and the schemas of its parts."""

    files: Files
    parts: Sequence[Part]


def _train(name: str, document_type: str, parameters: Mapping[str, Any]) -> Model:
    data = plant_rows() if document_type == "rows" else plant_texts()
    if "space" in parameters:  # by default it would be trained at full size
        return KNN(space=_train("glas", document_type, {"dim": 8, "epochs": 1})).fit(data)
    model = get_model_class(name).from_settings(dict(parameters)).fit(data)
    return model.calibrate(data)


def _describe(model: Model) -> Original:
    files = model.to_files()
    parts = [Part("", (), model.describe_all(files))]
    for name, member in getattr(model, "members_", {}).items():
        own = member.describe_all(member.to_files())
        parts.append(Part(f"inner.{name}.", ("inner", name), own))
    return Original(files, parts)


# -- the changes ----------------------------------------------------------------------------------


def change_array(random: Random, files: Files, part: Part) -> None:
    """Change one array: its length, its type, its shape, or its numbers."""
    names = [part.prefix + name for name in part.schema.arrays]
    name = random.choice([name for name in names if name in files.arrays] or names)
    if name in files.arrays:
        with np.errstate(all="ignore"):
            changed = random.choice(ARRAY_CHANGES)(random, files.arrays[name])
        if changed is None:
            del files.arrays[name]
        else:
            files.arrays[name] = np.ascontiguousarray(changed)


def resize(random: Random, files: Files, part: Part) -> None:
    """Give one size another value wherever it stands, so that the shapes still fit together."""
    extents = {extent for array in part.schema.arrays.values() for extent in array.shape}
    size = random.choice(sorted(str(extent).removesuffix("+1") for extent in extents))
    how = random.choice((lambda n: n - 1, lambda n: n + 1, lambda n: 2 * n, lambda n: 0))
    for name, array in part.schema.arrays.items():
        found = files.arrays.get(part.prefix + name)
        if found is None or found.ndim != len(array.shape):
            continue
        for axis, extent in enumerate(array.shape):
            if str(extent).removesuffix("+1") == size:
                more = str(extent).endswith("+1")
                places = np.arange(max(0, how(found.shape[axis] - more) + more))
                found = (
                    found.take(places % max(1, found.shape[axis]), axis) if found.size else found
                )
        files.arrays[part.prefix + name] = np.ascontiguousarray(found)
    for name, texts in part.schema.texts.items():
        lines = files.texts.get(part.prefix + name)
        if texts.n == size and lines:
            n = max(0, how(len(lines)))
            files.texts[part.prefix + name] = [*lines, *(f"more{i}" for i in range(n))][:n]
    _resize_config(part.schema.config, _group(files, part), size, how)


def _resize_config(
    declared: Mapping[str, Any], held: Any, size: str, how: Callable[[int], int]
) -> None:
    for key, each in declared.items():
        if not isinstance(held, dict) or key not in held:
            continue
        if isinstance(each, Value) and each.size == size and isinstance(held[key], int):
            held[key] = how(held[key])
        elif isinstance(each, Mapping):
            _resize_config(each, held[key], size, how)


def change_value(random: Random, files: Files, part: Part) -> None:
    """Change one value of config.json, leave one out, or add one."""
    groups = [group for group in _groups(_group(files, part)) if group]
    if not groups:
        return
    group = random.choice(groups)
    key = random.choice(sorted(group))
    choice = random.random()
    if choice < 0.1:
        del group[key]
    elif choice < 0.15:
        group["more"] = group[key]
    elif choice < 0.3 and isinstance(group[key], list):
        group[key] = group[key] * random.choice((0, 2, 2000))
    else:
        group[key] = random.choice((*NUMBERS, *FLOATS, *OTHERS, f"{group[key]}x"))


def _groups(held: Any) -> list[dict[str, Any]]:
    if not isinstance(held, dict):
        return []
    return [held, *(group for value in held.values() for group in _groups(value))]


def _group(files: Files, part: Part) -> Any:
    held: Any = files.config
    for key in part.path:
        held = held.get(key) if isinstance(held, dict) else None
    return held


def change_texts(random: Random, files: Files, part: Part) -> None:
    """Change one list of texts."""
    names = [name for name in part.schema.texts if part.prefix + name in files.texts]
    if not names:
        return
    lines = files.texts[part.prefix + random.choice(names)]
    assert isinstance(lines, list)
    place = random.randrange(len(lines) + 1)
    choice = random.randrange(5)
    if choice == 0:
        del lines[place:]
    elif choice == 1:
        lines.insert(
            place, random.choice(("", "\0", "\udc80", "a b", "a b c", "<unknown>", "\u202e"))
        )
    elif choice == 2:
        lines.extend(lines[:place])
    elif choice == 3:
        random.shuffle(lines)
    else:
        lines.extend(f"more{i}" for i in range(10 ** random.randrange(1, 5)))


def swap_arrays(random: Random, files: Files, part: Part) -> None:
    """Store one array under the name of another."""
    names = sorted(files.arrays)
    if names:
        files.arrays[random.choice(names)] = files.arrays[random.choice(names)]


CHANGES = (
    change_array,
    change_array,
    change_value,
    change_value,
    resize,
    change_texts,
    swap_arrays,
)


def _put(random: Random, array: np.ndarray, value: float) -> np.ndarray:
    """Put a value into one place, or into all."""
    changed = array.copy()
    if changed.size:
        place = random.randrange(changed.size) if random.random() < 0.7 else slice(None)
        if changed.dtype.kind in "iu":
            value = int(np.nan_to_num(value)) % (1 << 8 * changed.dtype.itemsize)
            changed.reshape(-1).view(f"u{changed.dtype.itemsize}")[place] = value
        else:
            changed.reshape(-1)[place] = value
    return changed


def _shuffle(random: Random, array: np.ndarray) -> np.ndarray:
    return (
        np.random.default_rng(random.getrandbits(32))
        .permutation(array.reshape(-1))
        .reshape(array.shape)
    )


ARRAY_CHANGES: Sequence[Callable[[Random, np.ndarray], np.ndarray | None]] = (
    lambda random, array: array[: len(array) - 1] if array.ndim else array,
    lambda random, array: array[: random.randint(0, len(array))] if array.ndim else array,
    lambda random, array: np.concatenate([array, array[-1:]]) if array.ndim else array,
    lambda random, array: np.concatenate([array, array]) if array.ndim else array,
    lambda random, array: array[..., None],
    lambda random, array: array[None],
    lambda random, array: array.T,
    lambda random, array: array[:0] if array.ndim else array,
    lambda random, array: array.reshape(-1),
    lambda random, array: None,
    lambda random, array: np.array(array.flat[0]) if array.size else array,
    lambda random, array: array.astype(random.choice(DTYPES)),
    lambda random, array: array[::-1] if array.ndim else array,
    lambda random, array: _shuffle(random, array),
    lambda random, array: array * 0,
    lambda random, array: -array if array.dtype != np.bool_ else ~array,
    lambda random, array: (array * 1e5).astype(array.dtype),
    lambda random, array: _put(random, array, random.choice(NUMBERS)),
    lambda random, array: _put(random, array, random.choice(NUMBERS)),
    lambda random, array: _put(random, array, -random.choice(NUMBERS)),
    lambda random, array: _put(random, array, random.choice(FLOATS)),
    lambda random, array: _put(random, array, array.size),
    lambda random, array: _put(random, array, len(array) if array.ndim else 0),
)

ATTACKS = [
    Attack(
        "crafted folders",
        "a model folder of a stranger loads and answers with finite scores, or is refused",
        prepare,
        seconds=SECONDS,
        environment=BOUNDS_CHECKED,
    ),
    Attack(
        "damaged folders",
        "a model folder with damaged bytes, hashed again or not, is refused or answers",
        prepare_damage,
        seconds=SECONDS,
        environment=BOUNDS_CHECKED,
    ),
]
