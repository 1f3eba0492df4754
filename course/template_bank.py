"""Chapter NN: copy to tpulab/learn/bank/<name>.py, and add <name> to MODULES beside it."""

import numpy as np

from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import attempt, expect_close
from ..words import call_text
from . import Chapter

chapter = Chapter("99_template", "What this chapter is about", reading_minutes=20, needs=("03_jit",))

sign = Prediction("template.p1", "Which sign will the sum have?", ("plus", "minus"))
count = Prediction("template.p2", "How many numbers are above zero?", int)
size = Prediction("template.p3", "How large is the largest? Within a factor of two is right.", float, within=2)


@exercise("template.1", "Subtract the mean", minutes=5, difficulty=1, core=True)
class center:
    """Write `center(x)`: it takes a vector and returns it with its mean subtracted, so that it sums to 0.

    `center(jnp.array([1.0, 2.0, 6.0]))` is `[-2.0, -1.0, 3.0]`.
    """

    hints = ("What is the mean of a vector in `jnp`?", "`x.mean()` is a scalar, and subtraction broadcasts.")
    why = "The mean is one number; broadcasting subtracts it from each element."
    notes = "Watch for those who subtract the median: it is the same on symmetric examples."

    @staticmethod
    def stub(x):
        # one line
        raise NotImplementedError

    @staticmethod
    def solution(x):
        return x - x.mean()

    @wrong("median")
    @staticmethod
    def subtracts_median(x):
        return x - np.median(x)

    @wrong("divided")
    @staticmethod
    def divides(x):
        return x / x.mean()

    @staticmethod
    def check(answer):
        generator = np.random.default_rng(99)
        for length in (3, 8, 11):
            x = generator.exponential(size=length).astype(np.float32)
            expected = x - np.sum(x, dtype=np.float64) / length
            mistakes = [(x - np.median(x), "You subtracted the median."), (x / x.mean(), "You divided by the mean.")]
            expect_close(
                attempt(answer, x, name="center"),
                expected,
                call=call_text(answer, (x,), name="center"),
                cause="The result should sum to 0.",
                mistakes=mistakes,
            )
