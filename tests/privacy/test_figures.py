import pytest

from dpsynth_platform.foundation.figures import lower_bound, number_of, rounded


@pytest.mark.parametrize(
    ("number", "digits", "shown"),
    [
        (93_750.0, 3, "93,800"),
        (1_325_231, 4, "1,325,000"),
        (999.6, 3, "1,000"),
        (181.8181, 3, "182"),
        (1.5312, 3, "1.53"),
        (0.0026491, 4, "0.002649"),
        (0, 3, "0"),
        (7e12, 3, "7,000,000,000,000"),
    ],
)
def test_estimates_are_written_without_exponents(number: float, digits: int, shown: str) -> None:
    assert rounded(number, digits) == shown


def test_one_and_many() -> None:
    assert [number_of(number, "row") for number in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]


def test_a_lower_bound_is_never_more_than_what_is_meant() -> None:
    for units in (3, 7, 1000, 104_181, 336_776):
        assert 0.99 / units < float(lower_bound(1 / units)) <= 1 / units
    assert lower_bound(1 / 104_181) == "9.59e-06"
    assert lower_bound(0.1) == "0.1"
