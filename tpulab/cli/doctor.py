"""Is this machine ready for the course? All checks, one verdict, and a code that an instructor can collect."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .. import __version__
from ..learn import code
from ..learn.words import one_line
from . import checks, probe
from .checks import Check

TIME_LIMIT_S = 90.0  # for the three questions asked in processes of their own
Ask = Callable[[Sequence[str], float], Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Report:
    """What the doctor found.

    Args:
        checks: in the order they are shown.
    """

    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks for which the machine is not ready."""
        return tuple(check for check in self.checks if check.ok is False)

    @property
    def ready(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failed

    @property
    def verdict(self) -> str:
        """One line: "ready", or "not ready, because …" with the remedy."""
        if not self.failed:
            return "ready"
        first, *others = self.failed
        more = f" (and {len(others)} more above)" if others else ""
        return f"not ready, because of {first.name}: {first.found}; remedy: {first.remedy}{more}"

    @property
    def code(self) -> str:
        """A short text for an instructor: versions, sizes and answers; no names, no paths."""
        rows = {check.name: [check.ok, check.fact] for check in self.checks}
        return code.encode("doctor", {"v": __version__, "ready": self.ready, "c": rows})

    def as_dict(self) -> dict[str, Any]:
        """Give everything, for another program."""
        rows = [asdict(check) for check in self.checks]
        return {"ready": self.ready, "verdict": self.verdict, "code": self.code, "checks": rows}


def examine(ask: Ask = probe.ask_all, *, time_limit_s: float = TIME_LIMIT_S) -> Report:
    """Look at everything the course needs.

    Args:
        ask: puts questions to processes of their own, all at once.
        time_limit_s: how long these may take.
    """
    answers = ask(("first-cell", "kernel", "jupyterlab"), time_limit_s)
    first_cell = answers["first-cell"]
    looks: list[tuple[str, Callable[[], Check | list[Check]]]] = [
        ("python", checks.python),
        ("system", checks.system),
        ("packages", lambda: checks.packages(first_cell)),
        ("versions fit", checks.versions_fit),
        ("devices", lambda: checks.devices(first_cell)),
        ("memory", checks.memory),
        ("cores", checks.cores),
        ("disk", checks.disk),
        ("TPU compiler", checks.compiler),
        ("kaggle", checks.kaggle),
        ("progress folder", checks.progress_folder),
        ("JupyterLab", lambda: checks.jupyterlab(answers["jupyterlab"])),
        ("kernel", lambda: checks.kernel(answers["kernel"])),
    ]
    return Report(tuple(row for name, look in looks for row in _rows(name, look)))


def _rows(name: str, look: Callable[[], Check | list[Check]]) -> list[Check]:
    """Look at one thing; what goes wrong while looking is a row too, and the others are still looked at."""
    try:
        found = look()
    except Exception as error:
        why = f"cannot be looked at, {type(error).__name__}: {error}"
        found = Check(name, False, why, "mend what it names and run `tpulab doctor` again")
    rows = found if isinstance(found, list) else [found]
    return [replace(row, found=one_line(row.found), remedy=one_line(row.remedy)) for row in rows]
