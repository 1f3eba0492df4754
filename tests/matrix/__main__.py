"""Run the matrix: python -m tests.matrix [--only WORDS] [--runs N] [--list]."""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT)]

from .environments import CONTINUOUS  # noqa: E402
from .jobs import JOBS, Failed, Skipped  # noqa: E402


def main() -> int:
    """Run the chosen jobs one after the other and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description="Run the course on every version set.")
    parser.add_argument("--only", default="", metavar="WORDS", help="only jobs whose names contain this")
    parser.add_argument("--runs", type=int, default=10, help="how often each loop that never waits runs")
    parser.add_argument("--list", action="store_true", help="only list the jobs")
    chosen = parser.parse_args()
    names = [name for name in JOBS if chosen.only in name]
    if chosen.list or not names:
        print("\n".join(names) or f"no job's name contains {chosen.only!r}")
        return 0 if names else 2
    rows, counts = [], {"passed": 0, "failed": 0, "skipped": 0}
    for name in names:
        print(f"{name} ...", flush=True)
        started = time.monotonic()
        result, note = _run(name, chosen.runs)
        counts[result] += 1
        minutes = (time.monotonic() - started) / 60
        rows.append(f"{name:<28} {minutes:5.1f} min  {result:<8} {note.splitlines()[0]}")
        print(f"  {result}, {minutes:.1f} min: {note}", flush=True)
    print("\n" + "\n".join(rows) + "\n")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


def _run(name: str, runs: int) -> tuple[str, str]:
    try:
        return "passed", JOBS[name](runs)
    except Failed as problem:
        return "failed", str(problem)
    except Skipped as problem:
        return ("failed" if CONTINUOUS else "skipped"), str(problem)


if __name__ == "__main__":
    sys.exit(main())
