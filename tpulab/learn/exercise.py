"""One exercise: prompt, hints, stub, solution, check and wrong answers in one object."""

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..session import no_device
from .card import Card
from .time_limit import TimeLimitExceeded, time_limit
from .verdict import CannotCheck, NotAttempted, NotYet, with_flat_results
from .words import describe, ended, likely_cause, quoted

TIME_LIMIT_S = 20
MAX_FEEDBACK = 2000  # characters
_COMPARE = "Compare what it takes and returns with the prompt."

CORRECT, NOT_YET, NOT_ATTEMPTED, CANNOT_CHECK = "correct", "not yet", "not attempted", "cannot check here"
_TONES = {CORRECT: "good", NOT_YET: "wait", NOT_ATTEMPTED: "plain", CANNOT_CHECK: "plain"}


@dataclass(frozen=True, repr=False)
class Result(Card):
    """What a check answered.

    Args:
        text: the feedback as shown, status first.
        status: "correct", "not yet", "not attempted" or "cannot check here".
        feedback: the sentences without the status.
    """

    status: str = NOT_ATTEMPTED
    feedback: str = ""

    @classmethod
    def of(cls, status: str, feedback: str) -> "Result":
        """Build the result for a status and its sentences."""
        if len(feedback) > MAX_FEEDBACK:
            feedback = feedback[:MAX_FEEDBACK] + " ..."
        text = f"**{status.capitalize()}.** {feedback}"
        return cls(text=text, tone=_TONES[status], status=status, feedback=feedback)


@dataclass(frozen=True)
class Exercise:
    """Everything about one exercise.

    Args:
        id: chapter's short name and number, e.g. "jit.3"; never reused.
        title: a few words.
        minutes: what a learner needs, hints included.
        difficulty: 1 to 5.
        core: one of the chapter's three that everybody does; the others are stretch.
        name: what the learner's function is called.
        prompt: the task, Markdown.
        hints: at least two, in rising order.
        why: one or two sentences that go with the solution.
        notes: what an instructor should know: the misconception it is after, what to ask.
        stub: the function as handed out; raises a bare NotImplementedError.
        solution: the function that is correct.
        wrong_answers: plausible wrong functions by name.
        must_say: by the same names, words that the feedback must contain.
        checker: returns for a right answer, else raises one of `verdict`'s exceptions.
        needs_devices: below this `jax.device_count()` right and wrong cannot be told apart.
        needs_compiler: the check compiles the answer for a TPU.
    """

    id: str
    title: str
    minutes: int
    difficulty: int
    core: bool
    name: str
    prompt: str
    hints: tuple[str, ...]
    why: str
    notes: str
    stub: Callable[..., Any]
    solution: Callable[..., Any]
    wrong_answers: Mapping[str, Callable[..., Any]]
    must_say: Mapping[str, str]
    checker: Callable[[Callable[..., Any]], None]
    needs_devices: int = 1
    needs_compiler: bool = False

    @property
    def chapter(self) -> str:
        """The chapter's short name: "jit" for "jit.3"."""
        return self.id.split(".")[0]

    @property
    def stub_source(self) -> str:
        """The stub as it stands in the learner's notebook."""
        return self._source(self.stub)

    @property
    def solution_source(self) -> str:
        """The solution as it stands in the instructor's notebook."""
        return self._source(self.solution)

    def _source(self, function: Callable[..., Any]) -> str:
        text = textwrap.dedent(inspect.getsource(function)).removeprefix("@staticmethod\n")
        return re.sub(rf"\bdef {function.__name__}\(", f"def {self.name}(", text, count=1).rstrip()

    def check(self, answer: Any) -> Result:
        """Run the check on a learner's own object. Never raises.

        Args:
            answer: whatever the learner wrote; a function if they followed the stub.

        Returns:
            The result; its feedback says what went in, what came out, what was expected and why.
        """
        if answer is None or answer is ...:
            return self._not_attempted()
        try:
            if lacking := self._lacking_devices() or self._lacking_compiler():
                return Result.of(CANNOT_CHECK, lacking)
            with time_limit(TIME_LIMIT_S), _course_settings():
                return self._judge(answer)
        except TimeLimitExceeded:
            return Result.of(
                NOT_YET,
                f"`{self.name}` was still running after {TIME_LIMIT_S} seconds and was stopped. "
                "Look for a loop whose end is never reached, or for something that it waits for.",
            )
        except BaseException as error:  # from the words for an object or an error; those of this one are not asked for
            return Result.of(NOT_YET, f"Looking at `{self.name}` raised `{type(error).__name__}`. {_COMPARE}")

    def _judge(self, answer: Any) -> Result:
        if not callable(answer):
            return Result.of(NOT_YET, f"`{self.id}` wants the function `{self.name}` itself; got {describe(answer)}.")
        try:
            self.checker(with_flat_results(answer, self.name))
        except NotAttempted:
            return self._not_attempted()
        except NotYet as verdict:
            return Result.of(NOT_YET, str(verdict))
        except CannotCheck as verdict:
            return Result.of(CANNOT_CHECK, str(verdict))
        except TimeLimitExceeded:
            raise
        except BaseException as error:
            return self._failed(error)
        return Result.of(CORRECT, f"`{self.name}` passes every trial.")

    def _not_attempted(self) -> Result:
        return Result.of(
            NOT_ATTEMPTED,
            f'Write `{self.name}`, then run this cell again. `tpulab.hint("{self.id}")` gives a first hint.',
        )

    def _failed(self, error: BaseException) -> Result:
        """An exception that reached us from inside the check, e.g. while it traced the answer."""
        if isinstance(error, NotImplementedError) and not error.args:
            return self._not_attempted()
        return Result.of(
            NOT_YET,
            f"Using what `{self.name}` gave raised {quoted(error)} {likely_cause(error) or _COMPARE}",
        )

    def _lacking_devices(self) -> str:
        import jax

        try:
            have = jax.device_count()
        except RuntimeError as error:
            return ended(no_device(error))
        if have >= self.needs_devices:
            return ""
        return (
            f"It needs at least {self.needs_devices} devices to tell right from wrong, and this kernel has {have}. "
            "Restart the kernel and run the first cell with `tpulab.setup(devices=8)`."
        )

    def _lacking_compiler(self) -> str:
        if not self.needs_compiler:
            return ""
        from ..xla import compiler_problem

        return ended(problem) if (problem := compiler_problem()) else ""


@contextmanager
def _course_settings() -> Iterator[None]:
    """Give the checks the settings that they were written for, whichever flags the learner has set."""
    import jax

    with (
        # A TPU rounds the inputs of float32 products to bfloat16 unless told otherwise, and would fail right answers.
        jax.default_matmul_precision("highest"),
        jax.disable_jit(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        yield


@dataclass(frozen=True)
class _Wrong:
    function: Callable[..., Any]
    says: str


def wrong(says: str) -> Callable[[Any], Any]:
    """Mark a static method in an exercise's class as a plausible wrong answer.

    Args:
        says: words that the feedback for it must contain.
    """
    return lambda function: _Wrong(function.__func__, says)


_PARTS = ("hints", "why", "stub", "solution", "check")


def exercise(
    id: str,
    title: str,
    *,
    minutes: int,
    difficulty: int,
    core: bool = False,
    needs_devices: int = 1,
    needs_compiler: bool = False,
) -> Callable[[type], Exercise]:
    """Turn a class body into an `Exercise`.

    The class is named like the learner's function; its docstring is the prompt; `hints`, `why` and
    `notes` are texts; `stub`, `solution` and `check` are static methods; each static method
    under `@wrong` is a plausible wrong answer.

    Raises:
        ValueError: a part is missing, or there are fewer than two hints or wrong answers; names the
            exercise and the part.
    """

    def build(body: type) -> Exercise:
        parts = vars(body)
        problems = [part for part in _PARTS if part not in parts]
        if not body.__doc__:
            problems.append("a docstring, the prompt")
        wrongs = {name: part for name, part in parts.items() if isinstance(part, _Wrong)}
        if len(parts.get("hints", ())) < 2:
            problems.append("two hints")
        if len(wrongs) < 2:
            problems.append("two wrong answers")
        if problems:
            raise ValueError(f"exercise {id} ({body.__name__}) lacks {', '.join(problems)}")
        return Exercise(
            id=id,
            title=title,
            minutes=minutes,
            difficulty=difficulty,
            core=core,
            needs_devices=needs_devices,
            needs_compiler=needs_compiler,
            name=body.__name__,
            prompt=inspect.cleandoc(body.__doc__ or ""),
            hints=tuple(parts["hints"]),
            why=parts["why"],
            notes=parts.get("notes", ""),
            stub=parts["stub"].__func__,
            solution=parts["solution"].__func__,
            checker=parts["check"].__func__,
            wrong_answers={name: part.function for name, part in wrongs.items()},
            must_say={name: part.says for name, part in wrongs.items()},
        )

    return build


def is_strict() -> bool:
    """Say whether an autograder runs us, so that a check must raise instead of answering."""
    return bool(os.environ.get("NBGRADER_EXECUTION"))
