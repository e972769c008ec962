import errno

import pytest

from longtail.runtime.unfinished import unfinished_file

MESSAGE = "cannot be written"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_an_error_of_a_full_disk_names_the_file(tmp_path, number):
    with pytest.raises(OSError, match=MESSAGE) as caught, unfinished_file(tmp_path / "out.csv"):
        raise OSError(number, MESSAGE)
    assert caught.value.filename == str(tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_unfinished_file_names_the_one_it_becomes(tmp_path):
    with (
        pytest.raises(OSError, match=MESSAGE) as caught,
        unfinished_file(tmp_path / "out.csv") as place,
    ):
        raise OSError(errno.EROFS, MESSAGE, str(place))
    assert caught.value.filename == str(tmp_path / "out.csv")


def test_errors_of_other_files_stay_as_they_are(tmp_path):
    for error in (OSError(errno.ENOSPC, MESSAGE, "other"), BrokenPipeError(errno.EPIPE, MESSAGE)):
        before = error.filename
        with pytest.raises(OSError, match=MESSAGE) as caught, unfinished_file(tmp_path / "out.csv"):
            raise error
        assert caught.value.filename == before
