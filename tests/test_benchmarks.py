"""The benchmarks' figures, on times made up by hand."""

from benchmarks.__main__ import table


def test_ratios_are_medians_of_the_rounds_own_ratios():
    times = {"import jax": [1.0, 2.0, 4.0], "Run All x": [3.0, 4.0, 16.0]}
    assert table(times).splitlines()[2:] == [
        "| import jax | 2.00 s | 1.00 to 4.00 s | 1.00 |",
        "| Run All x | 4.00 s | 3.00 to 16.00 s | 3.00 |",
    ]
