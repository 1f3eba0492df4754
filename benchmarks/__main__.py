"""Measure import time, time to the first executed cell and Run All: python -m benchmarks [--rounds N] [--out FILE].

Each round runs every case once, so that a busy machine slows all alike; medians over rounds are shown, and ratios
are medians of the rounds' own ratios.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
IMPORTS = {"python alone": "pass", "import tpulab": "import tpulab", "import jax": "import jax"}
FIRST_CELL = "import tpulab\n\ntpulab.setup(devices=8)"


def seconds(command: list[str], cwd: Path) -> float:
    """Time one run of a command, start of its Python included."""
    started = time.perf_counter()
    subprocess.run(command, cwd=cwd, env=environment(cwd), check=True, capture_output=True)
    return time.perf_counter() - started


def environment(home: Path) -> dict[str, str]:
    """Give an environment with this checkout and a progress folder that is thrown away."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TPULAB_", "JAX_", "NPROC"))}
    return kept | {"PYTHONPATH": str(ROOT), "TPULAB_HOME": str(home)}


def first_cell(folder: Path) -> float:
    """Time from starting a kernel to the end of a notebook's first cell."""
    from nbformat.v4 import new_code_cell, new_notebook

    return _seconds(new_notebook(cells=[new_code_cell(FIRST_CELL)]), folder)


def run_all(path: Path, folder: Path) -> float:
    """Time Run All on one notebook, kernel start included."""
    import nbformat

    return _seconds(nbformat.read(path, as_version=4), folder)


def _seconds(book: Any, folder: Path) -> float:
    from nbclient import NotebookClient

    quiet = ["--IPKernelApp.log_level=ERROR"]
    client = NotebookClient(book, timeout=120, kernel_name="python3", extra_arguments=quiet)
    started = time.perf_counter()
    client.execute(env=environment(folder), cwd=str(folder))
    return time.perf_counter() - started


def measure(rounds: int) -> dict[str, list[float]]:
    """Measure all cases, `rounds` times each, interleaved."""
    books = sorted((ROOT / "notebooks").glob("*.ipynb"))
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for code in IMPORTS.values():  # bytecode and file cache warm for all
            seconds([sys.executable, "-c", code], folder)
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds} ...", file=sys.stderr, flush=True)
            for case, code in IMPORTS.items():
                times.setdefault(case, []).append(seconds([sys.executable, "-c", code], folder))
            times.setdefault("first cell", []).append(first_cell(folder))
            for path in books:
                times.setdefault(f"Run All {path.stem}", []).append(run_all(path, folder))
    return times


def table(times: dict[str, list[float]]) -> str:
    """Write the medians as a table, with the spread and how often `import jax` each case takes."""
    rows = ["| measured | median | fastest to slowest | × import jax |", "|---|--:|--:|--:|"]
    for case, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, times["import jax"], strict=True))
        spread = f"{min(values):.2f} to {max(values):.2f} s"
        rows.append(f"| {case} | {statistics.median(values):.2f} s | {spread} | {ratio:.2f} |")
    return "\n".join(rows)


def main() -> None:
    """Measure, print the table and store the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Time the course on this machine.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks.json")
    chosen = parser.parse_args()
    times = measure(chosen.rounds)
    where = {
        "python": platform.python_version(),
        "jax": version("jax"),
        "cores": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()}",
        "date": time.strftime("%Y-%m-%d"),
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"where": where, "seconds": times}, indent=1) + "\n", encoding="utf-8")
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    print(table(times))


if __name__ == "__main__":
    main()
