"""Bytes and counts in words. Decimal units throughout: chips state their bandwidth in GB/s, and 1 GB is 10^9 bytes."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def bytes_text(count: int | float | None) -> str:
    """Write bytes with a decimal prefix and three or four figures; "unknown" for None.

    Example:
        >>> bytes_text(29_368_832), bytes_text(512), bytes_text(1e9), bytes_text(None)
        ('29.4 MB', '512 B', '1 GB', 'unknown')
    """
    return "unknown" if count is None else _scaled(count, "B")


def count_text(count: int | float | None, unit: str = "") -> str:
    """Write a count with a decimal prefix; "unknown" for None.

    Example:
        >>> count_text(17_179_869_184, "FLOP"), count_text(850), count_text(197e12, "FLOP/s")
        ('17.2 GFLOP', '850', '197 TFLOP/s')
    """
    return "unknown" if count is None else _scaled(count, unit)


def _scaled(count: int | float, unit: str) -> str:
    for size, prefix in _PREFIXES:
        if abs(count) >= 0.9995 * size:
            return f"{_figures(count / size)} {prefix}{unit}"
    return f"{_figures(count)} {unit}".rstrip()


def _figures(value: float) -> str:
    """Write 1 to 1000 with three figures, or four where the fourth is one before the point, without idle zeros."""
    text = f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def gib_text(count: int | float | None) -> str:
    """Write bytes with a binary prefix: memories are sold as 16 GB and hold 16 GiB, which is 17.2 GB.

    Example:
        >>> gib_text(17_179_869_184), gib_text(134_217_728), gib_text(16e9), gib_text(None)
        ('16 GiB', '128 MiB', '14.9 GiB', 'unknown')
    """
    if count is None:
        return "unknown"
    for size, prefix in ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if abs(count) >= size:
            return f"{_figures(count / size)} {prefix}B"
    return f"{_figures(count)} B"
