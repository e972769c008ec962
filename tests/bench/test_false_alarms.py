"""The study of false alarms, on few trials."""

from bench.false_alarms import main, study


def test_seeds_that_differ_do_not_raise_alarms():
    documents_alone, seeds_as_well = study(4, 2000, 3, trials=20, draws=500)
    assert documents_alone > seeds_as_well
    assert seeds_as_well <= 10


def test_the_table_has_a_row_for_each_shape(capsys):
    main(["--trials", "1", "--draws", "50"])
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 * 2 * 3
