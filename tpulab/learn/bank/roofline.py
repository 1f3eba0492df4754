"""Chapter 07: roofline."""

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import chips, xla
from ...errors import first_line
from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import CannotCheck, NotYet, attempt, expect, expect_close
from ..words import describe, ended
from . import Chapter

chapter = Chapter("07_roofline", "Roofline: arithmetic or memory?", reading_minutes=27, needs=("06_fusion",))

share_of_peak = Prediction(
    "roofline.p1",
    "The layer with 16 rows and an 8192 × 8192 weight matrix, in bfloat16, on a v5e: what share of the chip's peak "
    "arithmetic can it reach at most, in percent? A factor of two either way is right.",
    float,
    within=2.0,
)
which_ceiling = Prediction(
    "roofline.p2",
    "Three programs on a v5e: the layer with 16 rows, the layer with 16,384 rows, and `normalize` on a matrix of "
    "32,768 × 8,192. Which ceiling does each meet first?",
    dict.fromkeys(("few rows", "many rows", "normalize"), ("compute", "memory")),
)
sixteen_times = Prediction(
    "roofline.p3",
    "`poly(1)` does one multiply-add for each number of a large float32 matrix, `poly(16)` does sixteen. By what factor "
    "does the compiler's estimate of cycles on a v5e grow?",
    float,
    within=1.25,
)
enough_rows = Prediction(
    "roofline.p4",
    "How many rows must the layer have, 8192 × 8192 weights in bfloat16 on a v5e, before arithmetic is what limits it? "
    "Within a quarter is right.",
    int,
    within=1.25,
)
three_wide = Prediction(
    "roofline.p5",
    "`x` is a float32 array of shape (262144, 3): 3.1 MB of numbers. Its last axis is 3, and tiles are 128 wide. How "
    "much of HBM does it take when `2 * x + 1` is compiled for a v5e?",
    ("3.1 MB", "4.2 MB", "134 MB"),
)
float_cycles = Prediction(
    "roofline.p6",
    "The layer with 2,048 rows and 2048 × 2048 weights, limited by arithmetic, in float32 instead of bfloat16, JAX's "
    "precision left as it is: by what factor do the estimated cycles on a v5e grow?",
    float,
    within=1.25,
)
newer_chip = Prediction(
    "roofline.p7",
    "A v6e has 4.7 times the peak of a v5e. How many times faster is the layer with 16 rows there, by the roofline?",
    float,
    within=1.2,
)


def _plain(value: Any, call: str, wanted: str) -> float:
    """Give a number as a float, or say that none came; one that sits in an array will do."""
    if isinstance(value, (bool, np.bool_)) or value is None:
        raise NotYet(f"{call} gave {describe(value)}; expected {wanted}.")
    try:
        array = np.asarray(value, np.float64)
    except Exception:
        raise NotYet(f"{call} gave {describe(value)}; expected {wanted}.") from None
    if array.shape != ():
        raise NotYet(f"{call} gave {describe(value)}; expected {wanted}.")
    return float(array)


def _expect_number(
    got: Any, expected: Any, call: str, mistakes: Any, cause: str, unit: str = "", rtol: float = 1e-6
) -> None:
    """Compare two numbers to `rtol`; `mistakes` are pairs of a value and what it comes from."""
    number, expected = _plain(got, call, "one number"), float(expected)
    if math.isclose(number, expected, rel_tol=rtol):
        return
    for value, sentence in mistakes:
        if value is not None and math.isclose(number, float(value), rel_tol=rtol):
            cause = sentence
            break
    raise NotYet(f"{call} gave {number:.6g}{unit}; expected {expected:.6g}{unit}. {cause}")


@exercise("roofline.1", "The intensity of a product", minutes=5, difficulty=1, core=True)
class intensity:
    """Write `intensity(m, k, n, width, out_width)`: how many FLOPs does a product of an (m, k) by a (k, n) matrix do
    for each byte that it moves? A number of the inputs takes `width` bytes, one of the result `out_width`; a
    multiply-add is 2 FLOPs; each of the three matrices crosses HBM once.

    `intensity(16, 8192, 8192, 2, 2)` is about 15.9.
    """

    hints = (
        "FLOPs: each of the m · n results is a sum of k products.",
        "Bytes: the two inputs have m · k and k · n numbers, the result m · n.",
        "Divide 2 · m · k · n by `width * (m * k + k * n) + out_width * m * n`.",
    )
    why = "FLOPs grow with three sizes multiplied, bytes with two: large products do much arithmetic for each byte."
    notes = (
        "Ask what it comes to when m is small against k and n (about 2m / width: the batch decides) and when all three "
        "are large. Half of a class forgets the 2, the other half the result."
    )

    @staticmethod
    def stub(m, k, n, width, out_width):
        # two or three lines
        raise NotImplementedError

    @staticmethod
    def solution(m, k, n, width, out_width):
        flops = 2 * m * k * n
        hbm_bytes = width * (m * k + k * n) + out_width * m * n
        return flops / hbm_bytes

    @wrong("a multiply and an add")
    @staticmethod
    def one_flop_each(m, k, n, width, out_width):
        return m * k * n / (width * (m * k + k * n) + out_width * m * n)

    @wrong("weights alone")
    @staticmethod
    def weights_only(m, k, n, width, out_width):
        return 2 * m / width

    @wrong("result is written")
    @staticmethod
    def forgets_the_result(m, k, n, width, out_width):
        return 2 * m * k * n / (width * (m * k + k * n))

    @wrong("upside down")
    @staticmethod
    def bytes_per_flop(m, k, n, width, out_width):
        return (width * (m * k + k * n) + out_width * m * n) / (2 * m * k * n)

    @wrong("`out_width`")
    @staticmethod
    def one_width(m, k, n, width, out_width):
        return 2 * m * k * n / (width * (m * k + k * n + m * n))

    @wrong("bytes, not numbers")
    @staticmethod
    def counts_numbers(m, k, n, width, out_width):
        return 2 * m * k * n / (m * k + k * n + m * n)

    @staticmethod
    def check(answer):
        trials = [
            (16, 8192, 8192, 2, 2),
            (4096, 1024, 300, 2, 4),
            (3, 5, 7, 4, 2),
            (1, 9000, 1, 1, 4),
            (640, 64, 2048, 1, 2),
        ]
        for m, k, n, width, out in trials:
            flops = Fraction(2 * m * k * n)
            read, written, numbers = width * (m * k + k * n), out * m * n, m * k + k * n + m * n
            call = f"`intensity({m}, {k}, {n}, {width}, {out})`"
            mistakes = [
                (flops / 2 / (read + written), "A multiply-add is two FLOPs: a multiply and an add."),
                (Fraction(2 * m, width), "That counts the weights alone; `x` is read and the result written as well."),
                (flops / read, "The result is written to HBM, too."),
                ((read + written) / flops, "That is upside down: FLOPs for each byte, not bytes for each FLOP."),
                (flops / (width * numbers), "A number of the result takes `out_width` bytes."),
                (flops / numbers, "You divided by how many numbers move: by bytes, not numbers."),
            ]
            got = attempt(answer, m, k, n, width, out, name="intensity")
            cause = "It is 2mkn FLOPs over the bytes of all three matrices."
            _expect_number(got, flops / (read + written), call, mistakes, cause, " FLOP/byte")


@exercise("roofline.2", "Which ceiling, and how long", minutes=6, difficulty=2, core=True)
class lower_bound:
    """Write `lower_bound(flops, hbm_bytes, chip)`. `chip` is a name that `chips.get` knows. Return a pair: which
    ceiling binds, `"compute"` or `"memory"`, and the seconds that a program needs at least, arithmetic in bfloat16 and
    memory traffic going on at the same time.

    `lower_bound(2e12, 1e9, "v5e")` is `("compute", 0.01015…)`.
    """

    hints = (
        "Two times: FLOPs at the chip's peak, and bytes at its memory rate.",
        "`chips.get(chip).bf16_flops_per_s` and `.hbm_bytes_per_s` are the two rates.",
        "What goes on at the same time ends with the slower one: the larger of the two times.",
    )
    why = "Two things that overlap take as long as the longer of them; the one that takes longer is the ceiling."
    notes = (
        "Adding the two is an upper bound (nothing overlaps), the larger a lower bound. Real programs lie between; ask "
        "by how much the two can differ at most (a factor of two)."
    )

    @staticmethod
    def stub(flops, hbm_bytes, chip):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(flops, hbm_bytes, chip):
        facts = chips.get(chip)
        compute_s = flops / facts.bf16_flops_per_s
        memory_s = hbm_bytes / facts.hbm_bytes_per_s
        return ("compute" if compute_s > memory_s else "memory"), max(compute_s, memory_s)

    @wrong("sum of the two")
    @staticmethod
    def adds(flops, hbm_bytes, chip):
        facts = chips.get(chip)
        compute_s, memory_s = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s
        return ("compute" if compute_s > memory_s else "memory"), compute_s + memory_s

    @wrong("shorter of the two")
    @staticmethod
    def shorter(flops, hbm_bytes, chip):
        facts = chips.get(chip)
        compute_s, memory_s = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s
        return ("compute" if compute_s > memory_s else "memory"), min(compute_s, memory_s)

    @wrong("other way round")
    @staticmethod
    def swapped(flops, hbm_bytes, chip):
        facts = chips.get(chip)
        compute_s, memory_s = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s
        return ("memory" if compute_s > memory_s else "compute"), max(compute_s, memory_s)

    @wrong("for another chip")
    @staticmethod
    def always_v5e(flops, hbm_bytes, chip):
        compute_s, memory_s = flops / 1.97e14, hbm_bytes / 8.2e11
        return ("compute" if compute_s > memory_s else "memory"), max(compute_s, memory_s)

    @wrong("more FLOPs than bytes")
    @staticmethod
    def compares_counts(flops, hbm_bytes, chip):
        facts = chips.get(chip)
        seconds = max(flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s)
        return ("compute" if flops > hbm_bytes else "memory"), seconds

    @wrong("milliseconds")
    @staticmethod
    def in_milliseconds(flops, hbm_bytes, chip):
        facts = chips.get(chip)
        compute_s, memory_s = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s
        return ("compute" if compute_s > memory_s else "memory"), 1e3 * max(compute_s, memory_s)

    @staticmethod
    def check(answer):
        # Peak and memory rate typed from the makers' pages as chips.csv lists them, so that a slip there is seen too.
        rates = {
            "v5e": (197e12, 0.82e12),
            "v5p": (459e12, 2.765e12),
            "v6e": (918e12, 1.638e12),
            "v4": (275e12, 1.2e12),
            "H100": (989.5e12, 3.35e12),
        }
        trials = [(2e12, 1e9), (2.147e9, 1.345e8), (3e11, 1e9), (7e8, 2e9), (4.2e11, 1.1e9)]
        for flops, hbm_bytes in trials:
            for chip, (peak, rate) in rates.items():
                compute_s, memory_s = flops / peak, hbm_bytes / rate
                bound = "compute" if compute_s > memory_s else "memory"
                call = f'`lower_bound({flops:g}, {hbm_bytes:g}, "{chip}")`'
                got = attempt(answer, flops, hbm_bytes, chip, name="lower_bound")
                shaped = isinstance(got, (tuple, list)) and len(got) == 2 and isinstance(got[0], str)
                expect(shaped, f'{call} gave {describe(got)}; expected a pair such as ("memory", 0.0012).')
                known = got[0] in ("compute", "memory")
                expect(known, f'{call} says {describe(got[0])}; the word is "compute" or "memory".')
                others = [max(flops / p, hbm_bytes / r) for p, r in rates.values()]
                mistakes = [
                    (compute_s + memory_s, "That is the sum of the two times; they overlap."),
                    (min(compute_s, memory_s), "That is the shorter of the two times; the longer one is the bound."),
                    (1e3 * max(compute_s, memory_s), "Those are milliseconds; seconds were asked for."),
                    (1e6 * max(compute_s, memory_s), "Those are microseconds; seconds were asked for."),
                    *(
                        (value, "That is right for another chip: take the rates of the one that is named.")
                        for value in others
                    ),
                ]
                _expect_number(
                    got[1], max(compute_s, memory_s), call, mistakes, "Which rate belongs to which?", " s", 0.01
                )
                cause = "It is the other way round: the ceiling is what takes longer."
                if (flops > hbm_bytes) == (got[0] == "compute"):
                    cause += (
                        " (More FLOPs than bytes says nothing; compare the times, or the intensity with the ridge.)"
                    )
                expect(got[0] == bound, f"{call} says {describe(got[0])}; expected {bound!r}. {cause}")


@exercise("roofline.3", "Rows enough for the ridge", minutes=7, difficulty=3, core=True)
class smallest_batch:
    """Write `smallest_batch(k, n, flops_per_s, bytes_per_s, width)`: the fewest rows for which a product
    `(rows, k) @ (k, n)` is limited by arithmetic, that is, for which arithmetic takes at least as long as memory.
    All three matrices cross HBM once, each number takes `width` bytes. Return a whole number, or `None` where no
    number of rows is enough.

    `smallest_batch(8192, 8192, 1.97e14, 8.2e11, 2)` is 256.
    """

    hints = (
        "Write down the two times for `rows` rows and set them equal. Which terms grow with `rows`?",
        "`rows * (2*k*n*bytes_per_s - width*flops_per_s*(k + n)) >= width*flops_per_s*k*n`.",
        "Where the bracket is not above 0, more rows bring as much traffic as arithmetic: `None`. Else divide, round up.",
    )
    why = (
        "Arithmetic grows with each row, but so does the traffic of that row; only what is left over has to pay for "
        "reading the weights."
    )
    notes = (
        "For wide weights it comes to ridge · width / 2, the famous 240 rows of a v5e in bfloat16; the traffic of x and "
        "of the result raises it to 256 at 8192 × 8192. With narrow weights (k · n / (k + n) below the ridge) it never happens."
    )

    @staticmethod
    def stub(k, n, flops_per_s, bytes_per_s, width):
        # about 5 lines
        raise NotImplementedError

    @staticmethod
    def solution(k, n, flops_per_s, bytes_per_s, width):
        gain = 2 * k * n * bytes_per_s - width * flops_per_s * (k + n)
        if gain <= 0:
            return None
        return int(-(-width * flops_per_s * k * n // gain))

    @wrong("weights alone")
    @staticmethod
    def only_weights(k, n, flops_per_s, bytes_per_s, width):
        return math.ceil(width * flops_per_s / bytes_per_s / 2)

    @wrong("rounded down")
    @staticmethod
    def rounds_down(k, n, flops_per_s, bytes_per_s, width):
        gain = 2 * k * n * bytes_per_s - width * flops_per_s * (k + n)
        return int(width * flops_per_s * k * n // gain) if gain > 0 else None

    @wrong("none is enough")
    @staticmethod
    def never_none(k, n, flops_per_s, bytes_per_s, width):
        gain = 2 * k * n * bytes_per_s - width * flops_per_s * (k + n)
        return math.ceil(width * flops_per_s * k * n / gain)

    @wrong("whole number")
    @staticmethod
    def no_rounding(k, n, flops_per_s, bytes_per_s, width):
        gain = 2 * k * n * bytes_per_s - width * flops_per_s * (k + n)
        return width * flops_per_s * k * n / gain if gain > 0 else None

    @wrong("`width`")
    @staticmethod
    def always_two_bytes(k, n, flops_per_s, bytes_per_s, width):
        gain = 2 * k * n * bytes_per_s - 2 * flops_per_s * (k + n)
        return math.ceil(2 * flops_per_s * k * n / gain) if gain > 0 else None

    @wrong("without the result")
    @staticmethod
    def forgets_the_result(k, n, flops_per_s, bytes_per_s, width):
        gain = 2 * k * n * bytes_per_s - width * flops_per_s * k
        return math.ceil(width * flops_per_s * k * n / gain) if gain > 0 else None

    @staticmethod
    def check(answer):
        trials = [
            (8192, 8192, 1.97e14, 8.2e11, 2),
            (4096, 16384, 3.94e14, 8.1e11, 1),
            (8192, 28672, 9.18e14, 1.638e12, 2),
            (2048, 5000, 4.59e14, 2.765e12, 4),
            (300, 300, 1.97e14, 8.2e11, 2),
            (480, 481, 1.97e14, 8.2e11, 2),  # ten million rows
            (64, 100_000, 4.59e14, 2.765e12, 2),
            (12_000, 256, 1e12, 1e11, 4),
            (10, 40, 3.0, 1.0, 2),
            (4, 4, 1.0, 1.0, 2),  # both ceilings at once, exactly
        ]
        for k, n, peak, rate, width in trials:
            expected = _fewest_rows(k, n, peak, rate, width)
            call = f"`smallest_batch({k}, {n}, {peak:g}, {rate:g}, {width})`"
            got = attempt(answer, k, n, peak, rate, width, name="smallest_batch")
            if expected is None:
                reason = "each further row brings more traffic than arithmetic can hide, so none is enough"
                expect(got is None, f"{call} gave {describe(got)}; expected `None`: {reason}.")
                continue
            number = _plain(got, call, f"{expected} rows")
            if number == expected:
                continue
            two = _fewest_rows(k, n, peak, rate, 2)
            only_x = math.ceil(width * peak * k * n / max(2 * k * n * rate - width * peak * k, 1e-9))
            cause = "Each row brings arithmetic, and traffic of its own, besides the weights that are read once."
            if not number.is_integer() and math.ceil(number) == expected:
                cause = "Rows come as a whole number: round up."
            elif number == expected - 1:
                cause = "One row too few: rounded down, the product is still limited by memory."
            elif number == math.ceil(width * peak / rate / 2):
                cause = "That counts the weights alone; `x` is read and the result written as well."
            elif number == two:
                cause = "That is for numbers of two bytes; use `width`."
            elif number == only_x:
                cause = "That is the traffic without the result, which is written to HBM, too."
            raise NotYet(f"{call} gave {describe(got)}; expected {expected}. {cause}")


def _fewest_rows(k: int, n: int, peak: float, rate: float, width: int) -> int | None:
    """Search by doubling and halving, in exact fractions: another way than the solution's."""
    compute, memory = Fraction(2 * k * n) / Fraction(peak), Fraction(width) / Fraction(rate)

    def enough(rows: int) -> bool:
        return rows * compute >= memory * (rows * k + k * n + rows * n)

    high = 1
    while not enough(high):
        high *= 2
        if high > 2**60:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@exercise("roofline.4", "One step of decoding", minutes=8, difficulty=3)
class decode_seconds:
    """A language model writes one token for each of `texts` texts in one step. For that it reads all its weights,
    once for all texts together, and for each text a cache of what was said before. Write
    `decode_seconds(parameters, width, texts, cache_bytes, count, chip)`: the seconds that a step needs at
    least. A parameter takes `width` bytes (int8: 1) and does 2 FLOPs for each text, in bfloat16 whatever its
    width; the cache takes `cache_bytes` bytes per text. Work and data are spread evenly over `count` chips called
    `chip`; arithmetic and memory overlap; the cache's FLOPs and all else are left out.

    30e9 int8 parameters, 4 texts of 819e6 bytes, 16 v5e: 2.5 ms.
    """

    hints = (
        "Which of the two grow with the number of texts: weights, cache, FLOPs?",
        "Bytes: `parameters * width + texts * cache_bytes`. FLOPs: `2 * parameters * texts`.",
        "Divide both by `count`, then by the chip's rates; the larger time is the bound.",
    )
    why = "The weights are read once however many texts share them, so more texts are nearly free until one of the ceilings is met."
    notes = (
        "After the pop quiz of the scaling book's chapter on inference (row in-03 of the course's worked problems: 2.5 ms). "
        "Ask what int8 weights buy at 4 texts (nearly half of the time) and at 4,000."
    )

    @staticmethod
    def stub(parameters, width, texts, cache_bytes, count, chip):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(parameters, width, texts, cache_bytes, count, chip):
        facts = chips.get(chip)
        hbm_bytes = parameters * width + texts * cache_bytes
        memory_s = hbm_bytes / facts.hbm_bytes_per_s
        compute_s = 2 * parameters * texts / facts.bf16_flops_per_s
        return max(memory_s, compute_s) / count

    @wrong("once for all")
    @staticmethod
    def weights_for_each(parameters, width, texts, cache_bytes, count, chip):
        facts = chips.get(chip)
        hbm_bytes = texts * (parameters * width + cache_bytes)
        return max(hbm_bytes / facts.hbm_bytes_per_s, 2 * parameters * texts / facts.bf16_flops_per_s) / count

    @wrong("arithmetic can be the ceiling")
    @staticmethod
    def memory_only(parameters, width, texts, cache_bytes, count, chip):
        return (parameters * width + texts * cache_bytes) / chips.get(chip).hbm_bytes_per_s / count

    @wrong("one chip")
    @staticmethod
    def one_chip(parameters, width, texts, cache_bytes, count, chip):
        facts = chips.get(chip)
        hbm_bytes = parameters * width + texts * cache_bytes
        return max(hbm_bytes / facts.hbm_bytes_per_s, 2 * parameters * texts / facts.bf16_flops_per_s)

    @wrong("`width`")
    @staticmethod
    def always_bfloat16(parameters, width, texts, cache_bytes, count, chip):
        facts = chips.get(chip)
        hbm_bytes = 2 * parameters + texts * cache_bytes
        return max(hbm_bytes / facts.hbm_bytes_per_s, 2 * parameters * texts / facts.bf16_flops_per_s) / count

    @wrong("left the cache out")
    @staticmethod
    def no_cache(parameters, width, texts, cache_bytes, count, chip):
        facts = chips.get(chip)
        hbm_bytes = parameters * width
        return max(hbm_bytes / facts.hbm_bytes_per_s, 2 * parameters * texts / facts.bf16_flops_per_s) / count

    @wrong("sum of the two")
    @staticmethod
    def adds(parameters, width, texts, cache_bytes, count, chip):
        facts = chips.get(chip)
        hbm_bytes = parameters * width + texts * cache_bytes
        return (hbm_bytes / facts.hbm_bytes_per_s + 2 * parameters * texts / facts.bf16_flops_per_s) / count

    @staticmethod
    def check(answer):
        trials = [
            (30e9, 1, 4, 819e6, 16, "v5e"),
            (200e9, 2, 1, 0, 32, "v4"),
            (8e9, 1, 2000, 2e6, 4, "v6e"),
            (8e9, 2, 700, 1e7, 8, "v5p"),
            (70e9, 0.5, 16, 1.3e9, 8, "v5e"),
        ]
        for parameters, width, texts, cache, count, chip in trials:
            peak, rate = {
                "v5e": (197e12, 0.82e12),
                "v4": (275e12, 1.2e12),
                "v6e": (918e12, 1.638e12),
                "v5p": (459e12, 2.765e12),
            }[chip]
            arithmetic = 2 * parameters * texts / peak / count
            weights, caches = parameters * width / rate / count, texts * cache / rate / count
            expected = max(weights + caches, arithmetic)
            call = f'`decode_seconds({parameters:g}, {width}, {texts}, {cache:g}, {count}, "{chip}")`'
            mistakes = [
                (expected * count, "That is the time of one chip; the work is spread over `count` of them."),
                (weights + caches, "Memory is not all: with so many texts arithmetic can be the ceiling."),
                (max(texts * weights + caches, arithmetic), "The weights are read once for all texts together."),
                (max(2 * weights / width + caches, arithmetic), "That is for weights of two bytes; use `width`."),
                (max(weights, arithmetic), "You left the cache out."),
                (weights + caches + arithmetic, "That is the sum of the two times; they overlap."),
            ]
            got = attempt(answer, parameters, width, texts, cache, count, chip, name="decode_seconds")
            _expect_number(got, expected, call, mistakes, "Take the longer of the two times.", " s", 0.01)


@exercise("roofline.5", "Bytes with padding", minutes=7, difficulty=3)
class padded_bytes:
    """Write `padded_bytes(shape, width, tile)`: the bytes that an array takes in HBM when it is stored in tiles.
    `tile` is a pair such as `(8, 128)`: the last axis is filled up to a multiple of 128, the one before it to a multiple
    of 8; other axes stay. An array with fewer than two axes counts as if it had axes of 1 in front. A number takes
    `width` bytes.

    `padded_bytes((262144, 3), 4, (8, 128))` is 134217728.
    """

    hints = (
        "Round a size up to a multiple of `t`: `-(-size // t) * t`.",
        "Put 1s in front until there are two axes, then round up the last two.",
        "Multiply all sizes and `width`.",
    )
    why = "Whole tiles are what moves; what fills them up moves as well."
    notes = (
        "The tile is given here since it is the compiler's choice: T(8,128) for most float32 arrays, T(4,128) for three "
        "rows, T(8,128)(2,1) for bfloat16 (pairs of rows share a word; the size is the same rule)."
    )

    @staticmethod
    def stub(shape, width, tile):
        # about 5 lines
        raise NotImplementedError

    @staticmethod
    def solution(shape, width, tile):
        *others, rows, columns = (1, 1, *shape)
        size = width
        for axis in others:
            size *= axis
        return size * (-(-rows // tile[0]) * tile[0]) * (-(-columns // tile[1]) * tile[1])

    @wrong("without padding")
    @staticmethod
    def unpadded(shape, width, tile):
        return math.prod(shape) * width

    @wrong("the last axis only")
    @staticmethod
    def last_axis_only(shape, width, tile):
        return math.prod(shape[:-1]) * (-(-shape[-1] // tile[1]) * tile[1]) * width if shape else width * tile[1]

    @wrong("the whole array")
    @staticmethod
    def rounds_the_total(shape, width, tile):
        numbers = tile[0] * tile[1]
        return -(-math.prod(shape) // numbers) * numbers * width

    @wrong("one more")
    @staticmethod
    def always_one_more(shape, width, tile):
        *others, rows, columns = (1, 1, *shape)
        return math.prod(others) * (rows // tile[0] + 1) * tile[0] * (columns // tile[1] + 1) * tile[1] * width

    @wrong("numbers")
    @staticmethod
    def forgets_width(shape, width, tile):
        *others, rows, columns = (1, 1, *shape)
        return math.prod(others) * -(-rows // tile[0]) * tile[0] * -(-columns // tile[1]) * tile[1]

    @wrong("swapped")
    @staticmethod
    def swaps(shape, width, tile):
        *others, rows, columns = (1, 1, *shape)
        return math.prod(others) * -(-rows // tile[1]) * tile[1] * -(-columns // tile[0]) * tile[0] * width

    @staticmethod
    def check(answer):
        trials = [
            ((5, 7, 9), 4, (8, 128)),
            ((262144, 3), 4, (8, 128)),
            ((3, 262144), 4, (4, 128)),
            ((16, 8192), 2, (8, 128)),
            ((2, 3, 9, 200), 2, (16, 128)),
            ((130,), 4, (8, 128)),
            ((), 4, (8, 128)),
            ((8, 128), 1, (32, 128)),
            ((40, 256), 2, (8, 128)),
        ]
        for shape, width, tile in trials:
            call = f"`padded_bytes({shape}, {width}, {tile})`"
            got = attempt(answer, shape, width, tile, name="padded_bytes")
            _expect_number(
                got, _tiled(shape, tile) * width, call, _padding_mistakes(shape, width, tile), "Multiply all sizes."
            )


def _tiled(shape: tuple[int, ...], tile: tuple[int, int]) -> int:
    """Count the numbers by laying tiles one after another, not by the formula."""
    full = (1,) * (2 - len(shape)) + tuple(shape)
    tiles = len(range(0, full[-2], tile[0])) * len(range(0, full[-1], tile[1]))
    return math.prod(full[:-2]) * tiles * tile[0] * tile[1]


def _padding_mistakes(shape: tuple[int, ...], width: int, tile: tuple[int, int]) -> list[tuple[int, str]]:
    full = (1,) * (2 - len(shape)) + tuple(shape)
    outer, rows, columns = math.prod(full[:-2]), full[-2], full[-1]
    wide = -(-columns // tile[1]) * tile[1]
    numbers, one = tile[0] * tile[1], math.prod(full)
    return [
        (one * width, "That is the array without padding."),
        (outer * rows * wide * width, "You padded the last axis only; the one before it is filled up, too."),
        (-(-one // numbers) * numbers * width, "You rounded the whole array up; each axis is filled up by itself."),
        (
            outer * (rows // tile[0] + 1) * tile[0] * (columns // tile[1] + 1) * tile[1] * width,
            "A size that is a multiple already needs no padding; you added one more tile.",
        ),
        (_tiled(shape, tile), "Those are numbers; each takes `width` bytes."),
        (
            _tiled(shape, (tile[1], tile[0])) * width,
            "The two sizes of the tile are swapped: the last axis gets `tile[1]`.",
        ),
    ]


def _small_products(x, y):
    return x @ y


@exercise("roofline.6", "Many small matrices", minutes=10, difficulty=4, needs_compiler=True)
class products:
    """A robot, a molecule or a camera brings a hundred thousand little matrices: `x` of shape (n, a, b) and `y` of
    shape (n, b, c), float32, with a, b and c of 2 to 4. Write `products(x, y)`, which gives the n matrix products, shape
    (n, a, c), exactly like `x @ y`, but compiles for a v5e to a program that moves **at most a tenth** of the HBM bytes.

    Rounding may differ in the last digits. No product of matrices (`@`, `jnp.einsum`, `lax.dot…`) is needed.
    """

    hints = (
        "Compile `x @ y` and look at its kernels: which of them move the most, and what layout do they want?",
        "The matrix unit wants small matrices in tiles of their own. Elementwise kernels keep `n` as the last axis.",
        "Give `x` and `y` a fourth axis so that they broadcast, `x[:, :, :, None] * y[:, None]`, and sum over one.",
    )
    why = (
        "Written as a multiply and a sum it is one fused loop over arrays whose long axis lies along the tiles; the "
        "matrix unit, which had to be fed padded tiles, is not asked."
    )
    notes = (
        "Compiled for a v5e at n = 262,144 `x @ y` moves 116 times the bytes of its arguments, the sum 2 times. It does "
        "the same FLOPs, on the vector unit. The lesson: the fastest unit is no use if the data have to be blown up for it."
    )

    @staticmethod
    def stub(x, y):
        # one line
        raise NotImplementedError

    @staticmethod
    def solution(x, y):
        return (x[:, :, :, None] * y[:, None]).sum(2)

    @wrong("is not a tenth")
    @staticmethod
    def matmul(x, y):
        return x @ y

    @wrong("is not a tenth")
    @staticmethod
    def einsum(x, y):
        return jnp.einsum("nij,njk->nik", x, y)

    @wrong("is not a tenth")
    @staticmethod
    def vmapped(x, y):
        return jax.vmap(jnp.dot)(x, y)

    @wrong("summed over the wrong axis")
    @staticmethod
    def wrong_axis(x, y):
        return (x[:, :, :, None] * y[:, None]).sum(1)

    @wrong("elementwise")
    @staticmethod
    def elementwise(x, y):
        return x[:, :, : y.shape[2]] * y[:, : x.shape[1]]

    @staticmethod
    def check(answer):
        for seed, (n, a, b, c) in enumerate(((5, 3, 3, 3), (7, 2, 3, 4), (3, 4, 2, 3), (9, 2, 2, 2))):
            generator = np.random.default_rng(seed)
            x, y = (generator.normal(size=shape).astype(np.float32) for shape in ((n, a, b), (n, b, c)))
            expected = np.stack([np.dot(one, two) for one, two in zip(x.astype(np.float64), y, strict=True)])
            summed = (x[:, :, :, None] * y[:, None]).sum(1)
            mistakes = [(summed, "You summed over the wrong axis: the one that `x` and `y` share goes.")]
            if a == b == c:
                mistakes.append((x * y, "That is the elementwise product."))
            call = f"`products(f32[{n},{a},{b}], f32[{n},{b},{c}])`"
            cause = "Element (i, k) is the sum over j of `x[:, i, j] * y[:, j, k]`."
            expect_close(attempt(answer, x, y, name="products"), expected, call=call, mistakes=mistakes, cause=cause)
        for n, a, b, c in ((65536, 3, 3, 3), (40000, 2, 4, 3)):
            generator = np.random.default_rng(n)
            x, y = (generator.normal(size=shape).astype(np.float32) for shape in ((n, a, b), (n, b, c)))
            call = f"`products(f32[{n},{a},{b}], f32[{n},{b},{c}])`"
            cause = "Fewer matrices came out right; what is done otherwise for many?"
            expect_close(attempt(answer, x, y, name="products"), np.matmul(x, y), call=call, cause=cause)
            shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, a, b), (n, b, c))]
            plain = xla.compile_for("v5e", _small_products, *shapes).hbm_bytes
            mine = attempt(lambda *specs: xla.compile_for("v5e", answer, *specs), *shapes, name="products").hbm_bytes
            call = f"`products(f32[{n},{a},{b}], f32[{n},{b},{c}])`, compiled for a v5e,"
            least = 4 * n * (a * b + b * c + a * c)
            expect(mine > least / 2, f"{call} moves {mine:,} bytes: less than its arguments have. Where do they go in?")
            expect(
                mine <= plain / 10,
                f"{call} moves {mine:,} bytes, `x @ y` {plain:,}: that is not a tenth. Arrays whose last axes are small "
                "are padded to whole tiles for the matrix unit. Which way of writing it does without that unit?",
            )


def _compiled(fn: Any, *shapes: Any) -> Any:
    """Compile one of our own functions for a v5e, or take the stored result; without either nothing can be checked."""
    try:
        return xla.compile_for("v5e", fn, *shapes)
    except xla.CompilerMissing as error:
        raise CannotCheck(ended(first_line(error))) from error


def _two_layers(x, w, v):
    return jnp.maximum(x @ w, 0) @ v


@exercise("roofline.7", "Predict the bytes", minutes=10, difficulty=3)
class mlp_bytes:
    """Two layers, `jnp.maximum(x @ w, 0) @ v` in bfloat16, `x` of shape (rows, d), `w` (d, f), `v` (f, d), sizes that
    are multiples of 128, `d` at least 1024, compiled for a v5e. Write `mlp_bytes(rows, d, f)`: the bytes that the compiled program moves
    to and from HBM, within 10 %. What passes between the layers stays in the chip's VMEM if it takes at most 32 MiB,
    and crosses HBM if it takes 256 MiB or more; you will not be asked about sizes between.
    """

    hints = (
        "What must come in, and what must go out, whatever the compiler does?",
        "How large is what passes between the layers, `(rows, f)`? Does it stay?",
        "If it does not stay, it crosses HBM twice: written by one kernel, read by the next.",
    )
    why = "Arguments and result cross once each; what is in between crosses twice, or not at all where it fits on the chip."
    notes = (
        "The counts are the compiler's, exact to the byte on the three version sets tried. Between 32 and 256 MiB it does "
        "other things (at 64 MiB it stores the hidden layer and copies it back early), which is why it is not asked."
    )

    @staticmethod
    def stub(rows, d, f):
        # about 5 lines
        raise NotImplementedError

    @staticmethod
    def solution(rows, d, f):
        outside = 2 * (rows * d + d * f + f * d + rows * d)
        hidden = 2 * rows * f
        return outside + (2 * hidden if hidden >= 256 * 2**20 else 0)

    @wrong("stays in VMEM")
    @staticmethod
    def always_crosses(rows, d, f):
        return 2 * (2 * rows * d + 2 * d * f) + 4 * rows * f

    @wrong("does not fit")
    @staticmethod
    def never_crosses(rows, d, f):
        return 2 * (2 * rows * d + 2 * d * f)

    @wrong("read again")
    @staticmethod
    def crosses_once(rows, d, f):
        hidden = 2 * rows * f
        return 2 * (2 * rows * d + 2 * d * f) + (hidden if hidden >= 2**28 else 0)

    @wrong("two bytes")
    @staticmethod
    def float32(rows, d, f):
        hidden = 4 * rows * f
        return 4 * (2 * rows * d + 2 * d * f) + (2 * hidden if hidden >= 2**29 else 0)

    @wrong("weights")
    @staticmethod
    def forgets_weights(rows, d, f):
        hidden = 2 * rows * f
        return 2 * (2 * rows * d) + (2 * hidden if hidden >= 2**28 else 0)

    @staticmethod
    def check(answer):
        for rows, d, f in (
            (512, 2048, 8192),
            (1024, 1024, 4096),
            (256, 8192, 8192),
            (16384, 4096, 16384),
            (65536, 1024, 2048),
            (16384, 1024, 16384),
        ):
            shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, d), (d, f), (f, d))]
            call = f"`mlp_bytes({rows}, {d}, {f})`"
            number = _plain(attempt(answer, rows, d, f, name="mlp_bytes"), call, "a number of bytes")
            compiled = _compiled(_two_layers, *shapes).hbm_bytes
            if 0.9 * compiled <= number <= 1.1 * compiled:
                continue
            outside, hidden = 4 * (rows * d + d * f), 2 * rows * f
            mistakes = [
                (outside + 2 * hidden, f"The hidden layer has {hidden / 2**20:.0f} MiB: it stays in VMEM."),
                (outside, f"The hidden layer has {hidden / 2**20:.0f} MiB: it does not fit, and crosses twice."),
                (outside + hidden, "What one kernel writes to HBM, the next has to read again."),
                (2 * outside, "A bfloat16 has two bytes."),
                (2 * outside + 4 * hidden, "A bfloat16 has two bytes."),
                (4 * rows * d, "Where are the weights?"),
                (4 * rows * d + 2 * hidden, "Where are the weights?"),
            ]
            cause = next(
                (text for value, text in mistakes if math.isclose(number, value, rel_tol=1e-3)), "What must cross?"
            )
            raise NotYet(f"{call} gave {number:,.0f} bytes; compiled for a v5e it moves {compiled:,}. {cause}")


def _norm(x):
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _dense(x, w):
    return jnp.maximum(x @ w, 0)


@exercise("roofline.8", "What a new chip buys", minutes=6, difficulty=2)
class speed_up:
    """Write `speed_up(program, old, new)`: by what factor does the time of `program` shrink, by the roofline, when it
    moves from the chip named `old` to the one named `new`? `program` has `.flops` and `.hbm_bytes`; take bfloat16 peaks,
    and the same bytes on both chips. A factor below 1 says that it gets slower.
    """

    hints = (
        "On each chip the time is the larger of two times.",
        "The ceiling that binds may be another one on the new chip.",
        "Time on `old` over time on `new`; `chips.roofline(program, name).seconds` gives each.",
    )
    why = "A program follows the ceiling that binds on each chip, not the headline figure of either."
    notes = (
        "A memory-bound program gains the ratio of the bandwidths, 2.0 from v5e to v6e, where the peaks promise 4.7."
    )

    @staticmethod
    def stub(program, old, new):
        # about 3 lines
        raise NotImplementedError

    @staticmethod
    def solution(program, old, new):
        return chips.roofline(program, old).seconds / chips.roofline(program, new).seconds

    @wrong("peaks alone")
    @staticmethod
    def peaks(program, old, new):
        return chips.roofline(program, new).ceilings.flops_per_s / chips.roofline(program, old).ceilings.flops_per_s

    @wrong("bandwidths alone")
    @staticmethod
    def bandwidths(program, old, new):
        return chips.roofline(program, new).ceilings.bytes_per_s / chips.roofline(program, old).ceilings.bytes_per_s

    @wrong("upside down")
    @staticmethod
    def inverted(program, old, new):
        return chips.roofline(program, new).seconds / chips.roofline(program, old).seconds

    @wrong("on the old chip")
    @staticmethod
    def old_ceiling_only(program, old, new):
        before, after = (chips.roofline(program, chip) for chip in (old, new))
        if before.bound == "compute":
            return after.ceilings.flops_per_s / before.ceilings.flops_per_s
        return after.ceilings.bytes_per_s / before.ceilings.bytes_per_s

    @staticmethod
    def check(answer):
        for name, flops, hbm_bytes in (
            ("far below every ridge", 7e10, 3e9),
            ("far above every ridge", 4e12, 1e9),
            ("between two ridges", 3.5e11, 1e9),
            ("between two others", 2e11, 1e9),
        ):
            _expect_speed_ups(answer, name, SimpleNamespace(flops=flops, hbm_bytes=hbm_bytes))
        half, spec = jnp.bfloat16, jax.ShapeDtypeStruct
        _expect_speed_ups(answer, "a norm, compiled", _compiled(_norm, spec((16384, 8192), half)))
        product = _compiled(_dense, spec((8192, 4096), half), spec((4096, 8192), half))
        _expect_speed_ups(answer, "a product, compiled", product)


def _expect_speed_ups(answer: Any, name: str, program: Any) -> None:
    # Peak and memory rate as in chips.csv, by hand.
    rates = {
        "v5e": (197e12, 0.82e12),
        "v5p": (459e12, 2.765e12),
        "v6e": (918e12, 1.638e12),
        "H100": (989.5e12, 3.35e12),
    }
    for old, new in (("v5e", "v6e"), ("v5p", "v6e"), ("v6e", "v5p"), ("v5e", "H100")):
        (peak0, rate0), (peak1, rate1) = rates[old], rates[new]
        before = max(program.flops / peak0, program.hbm_bytes / rate0)
        after = max(program.flops / peak1, program.hbm_bytes / rate1)
        stays = peak1 / peak0 if program.flops / peak0 > program.hbm_bytes / rate0 else rate1 / rate0
        work = f"{name}: {program.flops:.3g} FLOPs, {program.hbm_bytes:.3g} bytes"
        mistakes = [
            (after / before, "That is upside down: old time over new time."),
            (stays, "You looked at what binds on the old chip; on the new one it is the other ceiling."),
            (peak1 / peak0, "That is the ratio of the peaks alone; this program is limited by memory."),
            (rate1 / rate0, "That is the ratio of the bandwidths alone; this program is limited by arithmetic."),
        ]
        got = attempt(answer, program, old, new, name="speed_up")
        call = f'`speed_up(program, "{old}", "{new}")` ({work})'
        _expect_number(got, before / after, call, mistakes, "Take the larger time on each chip.", "×", 0.02)


def _wide_layer(x, w, b):
    return jnp.maximum(x @ w + b, 0)


@exercise("roofline.9", "Where more rows stop paying", minutes=8, difficulty=3)
class efficient_rows:
    """Write `efficient_rows(estimate, candidates)`. `estimate(rows)` gives the compiler's estimated cycles for a layer
    with that many rows; `candidates` is a list of row counts, in no order. Return the smallest candidate whose cycles
    **per row** are at most 1.1 times the best among all candidates.

    Where the cycles are 1,150, 2,000 and 4,040 for 10, 20 and 40 rows, the answer is 20.
    """

    hints = (
        "What would you plot against the number of rows to see where more of them stop paying?",
        "Compute `estimate(rows) / rows` for each candidate, and the smallest of these.",
        "Keep the candidates that are within 1.1 times of it, and take the `min` of those.",
    )
    why = "Below the ridge rows are nearly free, so cycles per row fall; beyond it each row costs the same."
    notes = (
        "For the layer of 8192 × 8192 on a v5e the answer is 512, twice what the roofline's 256 says: near the ridge both "
        "ceilings are busy. Which of the two would you take in practice? (Latency speaks for few rows.)"
    )

    @staticmethod
    def stub(estimate, candidates):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(estimate, candidates):
        per_row = {rows: estimate(rows) / rows for rows in candidates}
        best = min(per_row.values())
        return min(rows for rows, cycles in per_row.items() if cycles <= 1.1 * best)

    @wrong("per row")
    @staticmethod
    def fewest_cycles(estimate, candidates):
        return min(candidates, key=estimate)

    @wrong("the best itself")
    @staticmethod
    def the_best(estimate, candidates):
        return min(candidates, key=lambda rows: estimate(rows) / rows)

    @wrong("largest")
    @staticmethod
    def the_largest(estimate, candidates):
        return max(candidates)

    @wrong("in no order")
    @staticmethod
    def first_that_fits(estimate, candidates):
        per_row = [estimate(rows) / rows for rows in candidates]
        return next(rows for rows, cycles in zip(candidates, per_row, strict=True) if cycles <= 1.1 * min(per_row))

    @wrong("cycles themselves")
    @staticmethod
    def compares_totals(estimate, candidates):
        totals = {rows: estimate(rows) for rows in candidates}
        return max(rows for rows in candidates if totals[rows] <= 1.1 * min(totals.values()))

    @staticmethod
    def check(answer):
        half, spec = jnp.bfloat16, jax.ShapeDtypeStruct

        def compiled(rows):
            shapes = (spec((rows, 8192), half), spec((8192, 8192), half), spec((8192,), half))
            return _compiled(_wide_layer, *shapes).estimated_cycles

        knee = {20: 1000, 80: 1020, 160: 1650, 320: 3230, 480: 4900, 640: 6500}
        bumpy = {3: 300, 5: 320, 7: 340, 11: 361, 13: 700, 17: 535}
        trials = [
            (knee, (80, 480, 640, 320, 160, 20), "made-up cycles"),
            (bumpy, (17, 3, 13, 11, 5, 7), "made-up cycles"),
            ({8: 800, 16: 1600, 4: 430}, (16, 4, 8), "made-up cycles"),
            ({10: 1150, 20: 2000, 40: 4040}, (40, 10, 20), "made-up cycles"),
            ({10: 1300, 20: 2000, 40: 6000}, (20, 40, 10), "made-up cycles"),
            ({10: 1200, 20: 2380, 40: 4000}, (10, 40, 20), "made-up cycles"),
            ({10: 1107, 20: 2000}, (20, 10), "made-up cycles"),
        ]
        for table, candidates, what in trials:
            _expect_rows(answer, table, candidates, what)
        cycles = {rows: compiled(rows) for rows in (64, 256, 512, 1024, 2048)}
        _expect_rows(answer, cycles, (2048, 256, 1024, 64, 512), "the layer, compiled for a v5e")


def _expect_rows(answer: Any, table: dict[int, int], candidates: tuple[int, ...], what: str) -> None:
    def estimate(rows):
        expect(rows in candidates, f"`estimate` was called on {describe(rows)}, which is no candidate.")
        return table[rows]

    per_row = {rows: table[rows] / rows for rows in candidates}
    good = [rows for rows in candidates if per_row[rows] <= 1.1 * min(per_row.values())]
    call = f"`efficient_rows(estimate, {list(candidates)})` ({what})"
    number = _plain(attempt(answer, estimate, list(candidates), name="efficient_rows"), call, f"{min(good)} rows")
    if number == min(good):
        return
    shown = ", ".join(f"{rows}: {per_row[rows]:.4g}" for rows in sorted(candidates))
    causes = [
        (
            min(candidates, key=lambda rows: per_row[rows]),
            "That is the best itself; a smaller one comes within 1.1 times.",
        ),
        (good[0], "The candidates come in no order; take the smallest that fits, not the first."),
        (max(candidates), "That is the largest candidate, whatever its cycles."),
        (min(candidates, key=lambda rows: table[rows]), "Fewest cycles in all is not fewest per row."),
    ]
    cause = next((text for value, text in causes if value == number), "Compare cycles per row, not cycles themselves.")
    raise NotYet(f"{call} gave {number:g}; expected {min(good)}. Cycles per row: {shown}. {cause}")
