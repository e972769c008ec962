"""What became of labels: scores of merged ones, names, and documents read for a model."""

import numpy as np
import pytest

from longtail.data import as_dataset
from longtail.errors import DataError, ParameterError
from longtail.labels.adopting import adopt
from longtail.labels.state import LabelState
from longtail.labels.vocabulary import Concept, Vocabulary
from longtail.runtime.schema import Schema
from longtail.runtime.store import Files
from longtail.topk import TopK

NAMES = ["ale", "beer", "wine", "lager", "cider"]
SCORES = np.array([[0.4, 0.3, 0.2, 0.1, 0.05], [0.0, 0.9, 0.3, 0.7, 0.8]], np.float32)


def own_list(k):
    order = np.argsort(-SCORES, axis=1)[:, :k].astype(np.int32)
    return TopK(order, np.take_along_axis(SCORES, order, 1))


def score(rows, parts):
    return np.where(parts >= 0, np.take_along_axis(SCORES[rows], np.maximum(parts, 0), 1), 0)


def test_merged_labels_add_up_wherever_they_stand():
    state = LabelState().merge([0, 3], 1, 5)  # ale and lager are beer now
    top = state.edit(own_list(2), score)
    assert top.labels.tolist() == [[1, -1], [1, 4]]  # both of the first row's are beer
    assert top.scores[:, 0] == pytest.approx([0.8, 1.0])  # 0.4 + 0.3 + 0.1, and no more than 1
    all_rows = state.score(np.array([[1, 0, 2], [4, -1, 3]], np.int32), lambda p: score([0, 1], p))
    assert all_rows.ravel().tolist() == pytest.approx([0.8, 0, 0.2, 0.8, 0, 0])


def test_merging_again_takes_what_was_merged_along():
    state = LabelState().merge([0], 1, 5).merge([1], 2, 5)
    assert state.targets.tolist() == [2, 2, 2, 3, 4]


def test_dropped_labels_leave_the_list_and_others_move_up():
    state = LabelState().drop([1], 5)
    assert state.edit(own_list(3), score).labels.tolist() == [[0, 2, -1], [4, 3, -1]]
    assert state.bring_back(1).edit(own_list(2), score).labels.tolist() == [[0, 1], [1, 4]]


def test_a_label_that_comes_back_has_what_was_merged_into_it():
    dropped = LabelState().merge([0], 1, 5).drop([1], 5)
    assert dropped.given.tolist() == [-1, -1, 2, 3, 4]
    assert dropped.edit(own_list(3), score).labels.tolist() == [[2, -1, -1], [4, 3, -1]]
    assert dropped.count(np.full(5, 10), 100).tolist() == [0, 0, 10, 10, 10]
    whole = dropped.bring_back(1)
    assert whole.edit(own_list(1), score).scores.ravel() == pytest.approx([0.7, 0.9])
    assert whole.count(np.full(5, 10), 100).tolist() == [0, 20, 10, 10, 10]
    assert dropped.bring_back(0).bring_back(1).given.tolist() == [0, 1, 2, 3, 4]
    files = Files()
    dropped.add_to_files(files)
    (Schema() | LabelState.describe(files)).check(files, {"n_labels": 5})
    assert LabelState.from_files(files).given.tolist() == dropped.given.tolist()


def test_documents_get_the_names_that_labels_have_now():
    state = LabelState().merge([0], 1, 5).drop([2], 5)
    data = as_dataset(["a", "b", "c"], [["ale", "beer"], ["wine"], ["new"]])
    read, notes = state.read(data, NAMES)
    assert [[read.label_names[i] for i in row.indices] for row in read.Y] == [["beer"], [], ["new"]]
    assert notes[0].startswith("1 label ('wine') of the documents passed over")


def test_a_name_that_a_label_had_means_it_until_another_label_has_it():
    state = LabelState().rename(0, "Bier").rename(0, "cerveza").merge([0], 1, 5)
    number = {name: i for i, name in enumerate(NAMES)}
    assert state.resolve(["Bier", "cerveza", "wine", "x"], None, number).tolist() == [1, 1, 2, -2]
    assert state.resolve(["Bier"], None, {**number, "Bier": 4}).tolist() == [4]
    assert state.rename(2, "Bier").resolve(["Bier"], None, number).tolist() == [2]


def drinks():
    return Vocabulary.build(
        [
            Concept("http://x/1", {"en": "beer", "fi": "olut"}, {"en": ["ale"]}),
            Concept("http://x/2", {"en": "wine"}, deprecated=True, replaced_by="http://x/3"),
            Concept("http://x/3", {"en": "drink", "fi": "juoma"}),
        ]
    )


def test_a_vocabulary_joins_names_of_one_concept_and_replaces_the_old():
    data = as_dataset(["a", "b", "c"], [["ale", "http://x/1"], ["wine"], ["other"]])
    found, notes = adopt(data, drinks())
    rows = [[found.label_names[i] for i in row.indices] for row in found.Y]
    assert rows == [["ale"], ["drink"], ["other"]]
    assert found.label_uris == {"ale": "http://x/1", "drink": "http://x/3"}
    assert found.other_names["ale"] == ["beer", "olut", "ale"]
    assert notes == [
        "of 4 labels the vocabulary lacks 1 label ('other')",
        "deprecated concepts are replaced in 1 label ('wine'), such as 'wine' by <http://x/3>",
    ]
    finnish, _ = adopt(data, drinks(), "fi")
    assert set(finnish.label_names) == {"olut", "juoma", "other"}


def test_a_vocabulary_of_something_else_is_refused():
    with pytest.raises(DataError, match="none of the 1 labels of the data is in the vocabulary"):
        adopt(as_dataset(["a"], [["horse"]]), drinks())


def test_names_in_a_language():
    data = as_dataset(["a", "b"], [["beer"], ["horse"]])
    state = LabelState.of(drinks(), data)
    assert state.names_in("fi", data.label_names) == ["olut", "horse"]
    assert state.uris == ["http://x/1", None]
    with pytest.raises(ParameterError, match="the model has no vocabulary"):
        LabelState().names_in("fi", NAMES)


@pytest.mark.parametrize(
    "targets", [[1, 2, 2, 3, 4], [-1] * 5, [-1, 0, 0, 0, 0], [5, 1, 2, 3, 4], [0, 1]]
)
def test_tables_that_make_no_sense_are_refused(targets):
    files = Files(arrays={"label_targets": np.array(targets, np.int32)})
    with pytest.raises(ValueError, match="label_targets"):
        (Schema() | LabelState.describe(files)).check(files, {"n_labels": 5})
