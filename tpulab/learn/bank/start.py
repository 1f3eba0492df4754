"""Chapter 00: how the course works."""

from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import attempt, call_text, expect_close
from . import Chapter

chapter = Chapter("00_start", "Start here: your laptop is a TPU lab", reading_minutes=20)

relu_example = Prediction("start.p1", "What is `relu(-2.0)`?", float)


@exercise("start.1", "First check", minutes=3, difficulty=1, core=True)
class double:
    """Write `double(x)`, which returns twice its argument; `x` is a number or an array."""

    hints = ("Arithmetic works on arrays, element by element.", "`2 * x` does it for both.")
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

    @staticmethod
    def check(answer):
        import numpy as np

        for x in (3.0, np.array([1.0, -2.0, 5.0]), np.arange(12.0).reshape(3, 4)):
            got = attempt(answer, x, name="double")
            mistakes = [(x**2, "You squared `x`."), (x, "That is `x` as it came.")]
            expect_close(got, np.add(x, x), call=call_text(answer, (x,), name="double"), mistakes=mistakes)
