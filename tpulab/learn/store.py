"""Where progress is kept: one small JSON file that survives restarts and two kernels at once."""

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FORMAT = 1
COUNTS = ("attempts", "hints", "seen")  # of an exercise, beside its status
MAX_COUNT = 1_000_000
DRAFT = ".tpulab-draft"  # ends the name of a file that is being written
_DRIVE = Path("/content/drive/MyDrive")  # Google Drive in Colab, once mounted

Record = dict[str, Any]


def home() -> Path:
    """Name the folder where progress is kept.

    `$TPULAB_HOME` if set; in Colab with Drive mounted, `tpulab` there; else the platform's own folder
    for user data.

    Raises:
        OSError: TPULAB_HOME starts with the home of a user that is not there.
    """
    if chosen := os.environ.get("TPULAB_HOME"):
        try:
            return Path(chosen).expanduser()
        except RuntimeError:
            raise OSError(f"TPULAB_HOME is {chosen!r}, and there is no such home") from None
    if _DRIVE.is_dir():
        return _DRIVE / "tpulab"
    from platformdirs import user_data_path

    return user_data_path("tpulab", appauthor=False)


def path() -> Path:
    """Name the progress file itself, where a link stands in its place."""
    return Path(os.path.realpath(home() / "progress.json"))


def empty() -> Record:
    """Give the record of somebody who has done nothing yet."""
    return {"format": FORMAT, "exercises": {}, "predictions": {}}


def read() -> tuple[Record, str]:
    """Read progress.

    Returns:
        The record, and one sentence to show if a damaged file was kept aside, else "".

    Raises:
        OSError: the file is there and cannot be opened, or a newer version wrote it; it is as it was.
    """
    file = path()
    if file.exists() and not file.is_file():  # to open a pipe would wait for somebody who writes
        raise OSError(errno.EINVAL, "this is no plain file", str(file))
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["format"] > FORMAT:
            raise OSError(f"{file} was written by a newer tpulab; update tpulab, or set TPULAB_HOME to another folder")
        return checked(record), ""
    except FileNotFoundError:
        return empty(), ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return empty(), _keep_aside()


@contextmanager
def update() -> Iterator[tuple[Record, str]]:
    """Read progress, let the body change it, write it back: no other kernel comes between.

    Raises:
        OSError: the folder or file cannot be written; progress is as it was.
    """
    from filelock import FileLock, Timeout

    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{file}.lock", timeout=10):
            sweep(file.parent)
            record, note = read()
            yield record, note
            write_json(file, record)
    except Timeout:
        raise OSError(f"another program has held {file} for 10 seconds") from None


def merge(mine: Record, other: Record) -> None:
    """Take into `mine` whatever `other` has got further with; nothing in `mine` is lost."""
    for key, theirs in other["exercises"].items():
        ours = mine["exercises"].setdefault(key, {})
        for name, value in theirs.items():
            if name == "status":
                ours[name] = max(ours.get(name, ""), value, key=_RANK.index)
            else:
                ours[name] = max(ours.get(name, 0), value)
    for key, theirs in other["predictions"].items():
        ours = mine["predictions"].setdefault(key, theirs)
        if ours.get("answer") == theirs.get("answer") and "right" in theirs:
            ours.setdefault("right", theirs["right"])


_RANK = ("", "not yet", "correct")


def write_json(path: Path, content: Record) -> None:
    """Write JSON so that the file is at every moment the old one or the new one, whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as stream:
            json.dump(content, stream, indent=1, ensure_ascii=False)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the drafts that killed programs left; a young one may belong to a program at work."""
    for draft in folder.glob(f".*{DRAFT}"):
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime > 60:
                draft.unlink()


def checked(record: Any) -> Record:
    """Give the record back if it has the shape that the rest relies on; fields of a newer version may stand beside.

    Raises:
        ValueError: it has not.
        KeyError, TypeError, AttributeError: it is no record at all.
    """
    if record["format"] != FORMAT:
        raise ValueError(f"progress format {record['format']}, this version reads {FORMAT}")
    for done in record["exercises"].values():
        if done.get("status", "") not in _RANK:
            raise ValueError(f"unknown status {done['status']!r}")
        counts = [done.get(name, 0) for name in COUNTS]
        if not all(isinstance(value, int) and 0 <= value < MAX_COUNT for value in counts):
            raise ValueError("a count is no number from 0 to a million")
    for guess in record["predictions"].values():
        if not isinstance(guess, dict) or "answer" not in guess:
            raise ValueError("a prediction is no record with an answer")
    return record


def _keep_aside() -> str:
    """Move a damaged file out of the way under a name of its own."""
    file, number = path(), 1
    while (aside := file.with_name(f"progress.damaged-{number}.json")).exists():
        number += 1
    file.replace(aside)
    return f"The progress file was damaged; it is kept as `{aside.name}` and a new one was started."
