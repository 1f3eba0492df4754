"""Chapter 00: how the course works, and what it computes on."""

import math

import numpy as np

from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import NotYet, attempt, expect, expect_close
from ..words import call_text, describe
from . import Chapter

chapter = Chapter("00_start", "Start here: your laptop is a TPU lab", reading_minutes=20)

placement = Prediction(
    "start.p1",
    "The next cell makes one array of 1,000 numbers. On how many of this kernel's devices will it lie?",
    int,
)
precision = Prediction(
    "start.p2",
    "NumPy makes `[0.1, 0.2]` with dtype `float64`. The next cell hands that array to JAX. Which dtype comes out?",
    ("float64", "float32", "bfloat16"),
)
rounding = Prediction(
    "start.p3",
    "16,777,216 is 2 to the power of 24. As a JAX float, what is `16_777_216.0 + 1`? Answer with the whole number.",
    int,
)
assignment = Prediction(
    "start.p4",
    "`x` is a JAX array of zeros. What does `x[0] = 9.0` do?",
    ("changes x", "changes a copy", "raises"),
)
dispatch = Prediction(
    "start.p5",
    "The next cell multiplies matrices for a while and reads the clock twice: when JAX hands back `y`, and when "
    "the numbers in `y` are there. What share of the whole time has passed at the first reading?",
    ("nearly nothing", "about half", "nearly all"),
)


@exercise("start.1", "First check", minutes=3, difficulty=1, core=True)
class double:
    """Write `double(x)`, which returns twice its argument; `x` is a number or an array.

    `double(3.0)` is 6, and `double` of an array doubles each of its numbers. An array that goes in stays as it was.
    """

    hints = (
        "Put one line in place of `raise NotImplementedError`: it starts with `return`.",
        "Arithmetic works on arrays, element by element.",
        "`2 * x` does it for both.",
    )
    why = "Arithmetic on a JAX array works element by element, as in NumPy."
    notes = "Only there so that everybody has seen *not yet* and *correct* once."

    @staticmethod
    def stub(x):
        # one line
        raise NotImplementedError

    @staticmethod
    def solution(x):
        return 2 * x

    @wrong("squared")
    @staticmethod
    def squares(x):
        return x**2

    @wrong("as it came")
    @staticmethod
    def returns_input(x):
        return x

    @wrong("`return`")
    @staticmethod
    def prints(x):
        str(2 * x)

    @wrong("whole")
    @staticmethod
    def as_float(x):
        return 2 * np.asarray(x, np.float32)

    @wrong("one number")
    @staticmethod
    def sums(x):
        return 2 * np.sum(x)

    @wrong("changed its own argument")
    @staticmethod
    def in_place(x):
        x *= 2
        return x

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(7)
        cases = (3.0, -1.5, 4, np.array([1.0, -2.0, 5.0]), rng.normal(size=(3, 4)), rng.integers(-9, 9, size=(5,)))
        cases = (*cases, 2**24 + 1, np.array([3, 2**24 + 1]))  # whole numbers that float32 does not hold
        for x in cases:
            call, given = call_text(answer, (x,), name="double"), []

            def watched(copy, given=given):
                given.append(copy)
                return answer(copy)

            got = attempt(watched, x, name="double")
            expect(
                np.array_equal(given[0], x),
                f"{call} changed its own argument: {describe(x)} became {describe(given[0])}. Return something new: "
                "`x *= 2` writes into the caller's array.",
            )
            expect(got is not None, f"{call} gave None; expected twice `x`. Does the function end with `return`?")
            mistakes = [
                (x**2, "You squared `x`."),
                (x, "That is `x` as it came."),
                (2 * np.sum(x), "That is one number for the whole array; each element is wanted."),
            ]
            expect_close(got, np.add(x, x), call=call, mistakes=mistakes)
            off = np.max(np.abs(np.asarray(got, np.float64) - np.add(x, x)))
            expect(
                np.asarray(x).dtype.kind == "f" or not off,
                f"{call} is off by {off:g}: whole numbers stay whole, and float32 does not hold all of those above 2**24.",
            )


@exercise("start.2", "How much memory is that?", minutes=5, difficulty=2, core=True)
class bytes_needed:
    """Write `bytes_needed(shapes)`: how many bytes do floating-point arrays of these shapes take together?

    They are made with JAX's default dtype, as `jnp.zeros(shape)` makes them. `shapes` is a list of tuples of whole
    numbers, and the answer is one whole number. A layer with 784 inputs and 128 outputs has the shapes
    `[(784, 128), (128,)]` and needs 401,920 bytes. The arrays may be larger than any memory: compute, make none.
    """

    hints = (
        "How many numbers does one shape hold, and how many bytes does one number take here?",
        "`math.prod(shape)` numbers, each of 4 bytes: float32 has 32 bits.",
        "Add up over all shapes: `sum(... for shape in shapes)`. `math.prod(())` is 1, and a scalar has the shape `()`.",
    )
    why = (
        "A float32 takes 4 bytes, and a shape holds the product of its dimensions; the empty product is 1, which is "
        "right for a scalar. A chip's memory is what limits a model first, so you will do this sum often."
    )
    notes = (
        "After: 8 bytes (NumPy's habit), adding dimensions up, and the scalar of shape `()`. Making the arrays and "
        "asking for `.nbytes` fails on the last trials, as it would for a model that is to be spread over many chips."
    )

    @staticmethod
    def stub(shapes):
        # one or two lines
        raise NotImplementedError

    @staticmethod
    def solution(shapes):
        return sum(4 * math.prod(shape) for shape in shapes)

    @wrong("8 bytes")
    @staticmethod
    def numpy_habit(shapes):
        return sum(np.zeros(shape).nbytes for shape in shapes)

    @wrong("numbers, not bytes")
    @staticmethod
    def counts_numbers(shapes):
        return sum(int(np.prod(shape)) for shape in shapes)

    @wrong("multiply")
    @staticmethod
    def adds_dimensions(shapes):
        return sum(4 * sum(shape) for shape in shapes)

    @wrong("scalar")
    @staticmethod
    def no_scalars(shapes):
        return sum(4 * int(np.prod(shape)) for shape in shapes if shape)

    @wrong("first shape")
    @staticmethod
    def only_first(shapes):
        return 4 * int(np.prod(shapes[0])) if shapes else 0

    @wrong("32 bits")
    @staticmethod
    def counts_bits(shapes):
        return sum(32 * int(np.prod(shape)) for shape in shapes)

    @wrong("too large for memory")
    @staticmethod
    def makes_them(shapes):
        return sum(np.zeros(shape, np.float32).nbytes for shape in shapes)

    @wrong("32 bits")
    @staticmethod
    def computes_in_32_bits(shapes):
        return int(4 * sum(np.prod(shape, dtype=np.int32) for shape in shapes))

    @wrong("of their own")
    @staticmethod
    def equal_shapes_once(shapes):
        return sum(4 * math.prod(shape) for shape in set(shapes))

    @staticmethod
    def check(answer):
        rng = np.random.default_rng(11)
        cases = [
            [(784, 128), (128,)],
            [(3, 5)],
            [(7,), (2, 3, 4), ()],
            [()],
            [],
            [(6, 0, 2), (11,)],
            [(5, 3), (3,), (5, 3), (), (3,), (5, 3), ()],
            [(1_000_003, 7), (2, 1)],
            [tuple(rng.integers(1, 9, size=rank).tolist()) for rank in (4, 1, 2, 3)],
        ]
        # The truth is what NumPy allocates; where nothing could, it is written by hand.
        truth = [sum(np.zeros(shape, np.float32).nbytes for shape in shapes) for shapes in cases]
        cases += [[(65_536, 65_536, 65_536), (3,)], [(3, 1_000_000_007)], [(7, 5), (90_001, 90_001), ()]]
        truth += [1_125_899_906_842_636, 12_000_000_084, 32_400_720_148]
        for shapes, right in zip(cases, truth, strict=True):
            numbers = right // 4
            first = 4 * math.prod(shapes[0]) if shapes else 0
            mistakes = [
                (int(np.float32(right)), "A float32 is exact for whole numbers up to 2**24 only; use Python's own."),
                (2 * right, "That is 8 bytes a number, NumPy's default; what does JAX take?"),
                (numbers, "You counted numbers, not bytes."),
                (32 * numbers, "A float32 has 32 bits; a byte has 8 of them."),
                (right - 4 * shapes.count(()), "A scalar has the shape `()` and holds one number."),
                (first, "That is the first shape alone."),
                (4 * sum(map(sum, shapes)), "You added the dimensions of a shape; multiply them."),
                (sum(4 * math.prod(shape) for shape in set(shapes)), "Arrays of equal shape take memory of their own."),
                ((right + 2**31) % 2**32 - 2**31, "Whole numbers of 32 bits end at 2**31 - 1; Python's own do not."),
            ]
            try:
                got = attempt(answer, shapes, name="bytes_needed")
            except NotYet as feedback:
                error = feedback.__cause__
                if right < 2**32 or error is None:
                    raise
                raise NotYet(
                    f"`bytes_needed({shapes})` raised `{type(error).__name__}`. Shapes as small as in the prompt went "
                    "well; these are too large for memory. Make no arrays: compute with the shapes, in Python's own "
                    "whole numbers."
                ) from None
            expect_close(
                got,
                right,
                call=f"`bytes_needed({shapes})`",
                cause=f"In full: {right:,} bytes." if right > 999_999 else "",
                mistakes=[(value, words) for value, words in mistakes if value != right],
                rtol=0,
                atol=0,
            )
