"""Set the course up with nothing but Python: make `.venv` beside this file and install the course into it.

python bootstrap.py            what learners need: the course, JAX, JupyterLab, on x86-64 Linux the TPU compiler
python bootstrap.py dev        what tests and authors need
python bootstrap.py --retry    also try the TPU compiler again, if it could not be had last time

Run again, it does what is missing and takes well under a second when nothing is. pip's own settings (proxy,
index, certificates, cache) hold. TPU_COMPILER=0 leaves the TPU compiler out, TPU_COMPILER=1 asks for it.
This file keeps to the Python of 2016, so that an old one can say that it is too old.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP, LOG = VENV / "setup.json", VENV / "setup.log"  # the stamp is there only while the set-up is complete
LOCK = ROOT / ".venv.lock"
OWN = {"bin", "include", "lib", "lib64", "scripts", "share"}  # what an environment has, in lower case
OLDEST, NEWEST = (3, 11), (3, 13)  # what requirements/lab.txt is tested on
COURSE_GB, COMPILER_GB = 2.0, 1.0  # free disk: what is fetched and what it becomes, with room to spare
COMPILER = "Google's TPU compiler libtpu, under Google's own terms, 720 MB on disk"


class Problem(Exception):
    """What stops the set-up and the remedy, in one line."""


def version_of(python):
    """Give the version of a Python program, e.g. (3, 11, 7); () if it is no CPython that runs."""
    code = "import sys, platform as p; print('\\nIt is', p.python_implementation(), *sys.version_info[:3])"
    try:
        said = subprocess.check_output([str(python), "-c", code], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return ()
    # A sitecustomize or an exit handler may print lines of its own.
    found = re.search(rb"^It is CPython (\d+) (\d+) (\d+)\s*$", said, re.MULTILINE)
    return tuple(int(number) for number in found.groups()) if found else ()


def find_python(version):
    """Find a Python of one version, e.g. "3.13": on PATH, then among pyenv's and uv's; None without one."""
    wanted = tuple(int(part) for part in version.split("."))
    places = [shutil.which("python" + version)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places += sorted(pyenv.glob("versions/" + version + ".*/bin/python"), reverse=True)
    if shutil.which("uv"):
        found = subprocess.run(
            ["uv", "python", "find", "--no-python-downloads", version],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
        )  # fmt: skip
        places.append(found.stdout.strip())
    return next((str(place) for place in places if place and version_of(place)[:2] == wanted), None)


def choose_python():
    """Give the Python for `.venv`: the one that runs this, or a newer one if it is too old.

    Raises:
        Problem: there is none that JAX runs on.
    """
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        raise Problem("JAX is not built for Macs with Intel processors: read the course on Colab or on a hub.")
    # Inside a virtual environment, take the Python that it was made from: it may be `.venv` itself.
    running = getattr(sys, "_base_executable", None) or sys.executable
    version = version_of(running)
    if version and version[:2] >= OLDEST and sys.maxsize > 2**32:
        if version[:2] > NEWEST:
            say(f"Python 3.{version[1]} is newer than what the course is tested on ({span()}); going on.")
        return running
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        found = find_python("3." + str(minor))
        if found:
            return found
    have = f"Python {platform.python_version()} ({running})"
    raise Problem(
        f"{have} does not run JAX; the course needs 64-bit CPython {span()}. Install one, for example from "
        "your system's packages or conda, then: make lab PYTHON=/path/to/python3.12"
    )


def span():
    """Give the versions of Python that the course is tested on, in words."""
    return f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def inputs():
    """Hash what decides which packages belong into `.venv`."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "requirements/lab.txt"):
        digest.update((ROOT / name).read_bytes())
    digest.update(re.findall(rb"__version__ = .*", (ROOT / "tpulab/__init__.py").read_bytes())[0])
    return digest.hexdigest()


def read_stamp():
    """Give what the last complete set-up noted; {} if there is none or it is damaged."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        whole = all(extra in ("lab", "dev", "tpu") for extra in stamp["extras"])
        return stamp if whole and isinstance(stamp["root"], str) else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def write_stamp(stamp):
    """Note a complete set-up: afterwards the whole note is there, or the old one."""
    new = STAMP.with_suffix(".new")
    new.write_text(json.dumps(stamp), encoding="utf-8")
    new.replace(STAMP)


def compiler_fits():
    """Say whether Google publishes its TPU compiler for this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def explain(output, doing, log=""):
    """Turn a failed command's words, the last ones above all, into one line with the remedy."""
    lines = output.splitlines()
    text = "\n".join(lines[-60:]).lower()
    where = f" pip's own words: {log}" if log else ""
    if "no space left" in text or "errno 28" in text or "disk quota" in text:
        return Problem(
            f"The disk is full, here or in {tempfile.gettempdir()}. Free {COURSE_GB + COMPILER_GB:.0f} GB, or point TMPDIR to a larger disk, and run "
            "the same command again."
        )
    if "read-only file system" in text or "permission denied" in text or "errno 13" in text:
        return Problem(f"{ROOT} may not be written to. Put the course into a folder of your own.{where}")
    # pip tries on after a failed connection, so that its last words may be of something else.
    text += "\n".join(line for line in lines if re.search("warning|error", line, re.IGNORECASE)).lower()
    signs = "name resolution|connection|timed? ?out|max retries|proxyerror|ssl|unreachable|getaddrinfo"
    signs += "|could not find a version|no matching distribution|neither a file nor a directory"
    if re.search(signs, text):
        return Problem(
            "pip cannot reach its package index, or it has nothing for this machine. Check the network, or set "
            f"pip's proxy or index (PIP_PROXY, PIP_INDEX_URL), and run the same command again.{where}"
        )
    errors = [line.strip() for line in lines if line.startswith("ERROR") or "Error:" in line]
    last = errors[-1] if errors else (output.strip().splitlines() or ["no output"])[-1]
    return Problem(f"{doing} failed: {last[:300]}{where}")


def make_venv(python):
    """Make `.venv` anew.

    Raises:
        Problem: something else has the name, it holds notebooks, the venv module is missing, or it could not write.
    """
    if os.pathsep in str(VENV):
        raise Problem(f"{ROOT} has a {os.pathsep!r} in its path, which no environment can have. Rename that folder.")
    if os.path.lexists(str(VENV)) and not VENV.is_dir():
        raise Problem(f"{VENV} is in the way: it is no folder. Move it away, and run the same command again.")
    for folder, inside, files in os.walk(str(VENV)):
        if Path(folder) == VENV:
            inside[:] = [name for name in inside if name.lower() not in OWN]
        if any(name.endswith(".ipynb") for name in files):
            raise Problem(
                f"{folder} holds notebooks, and {VENV} has to be made anew. Move them to a folder of your own."
            )
    if subprocess.call([python, "-c", "import venv, ensurepip"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        raise Problem(
            "{} has no venv module. On Debian and Ubuntu: sudo apt install python{}.{}-venv; elsewhere install a "
            "complete Python. Then run the same command again.".format(python, *version_of(python)[:2])
        )
    command = [python, "-m", "venv", "--clear", str(VENV)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    if done.returncode:
        raise explain(done.stdout, f"Making {VENV}")


def pip_install(*what):
    """Let pip install under the constraints of the default set, its words going to a log.

    Raises:
        Problem: it could not.
    """
    command = [
        str(PYTHON),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
    ]
    command += ["-c", "requirements/lab.txt", *list(what)]
    with LOG.open("a", encoding="utf-8") as log:
        pip = subprocess.Popen(
            command, cwd=str(ROOT), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
        lines = []
        for line in pip.stdout or ():
            log.write(line)
            lines.append(line)
            show_progress(line)
        show_progress("")
    if pip.wait():
        raise explain("".join(lines), "pip install", str(LOG))


def show_progress(line):
    """On a terminal, keep one line up to date with what pip does; elsewhere stay silent."""
    if sys.stdout.isatty() and (not line or re.match(r"Collecting|\s+Downloading|Installing", line)):
        sys.stdout.write("\r\033[K" + ("    " + line.strip()[:70] if line else ""))
        sys.stdout.flush()


def say(text):
    """Print a line at once."""
    print(text)
    sys.stdout.flush()


def set_up(extra, compiler, retry, locked=False):
    """Bring `.venv` up to date and note what it holds.

    Args:
        extra: "lab" or "dev".
        compiler: "yes", "no", or "keep" for as it is.
        retry: try the compiler again even if it could not be had last time.
        locked: no other set-up runs here.

    Raises:
        Problem: it cannot be done here and now.
    """
    python = choose_python()
    version = version_of(python)[:2]
    stamp = read_stamp()
    usable = stamp.get("root") == str(ROOT) and version_of(PYTHON)[:2] == version
    had = set(stamp["extras"]) if usable else set()
    current = usable and stamp.get("inputs") == inputs()
    wants_compiler = compiler == "yes" or (compiler == "keep" and "tpu" in had)
    wants_compiler = wants_compiler and (retry or not current or not stamp.get("compiler_failed"))
    course_missing = not current or extra not in had
    compiler_missing = wants_compiler and (not current or "tpu" not in had)
    if not course_missing and not compiler_missing:
        if retry:
            say(f"Already set up: {VENV}")
        return
    if not locked:
        with lock():
            set_up(extra, compiler, retry, locked=True)  # another may have done it meanwhile
        return
    need_space(COURSE_GB if not usable else COURSE_GB / 4 if course_missing else 0)
    started = time.time()
    say(f"Setting up the course in {VENV} with Python {'.'.join(map(str, version))}: some minutes the first time.")
    try:
        if STAMP.exists():
            STAMP.unlink()  # what is cut short from here on is made anew
        if not usable:
            make_venv(python)
        if course_missing:
            say("  installing the course, JAX and JupyterLab ...")
            had |= {extra, "lab"}
            pip_install("-e", f".[{','.join(sorted(had - {'tpu'}))}]")
        failed = not add_compiler() if compiler_missing else bool(stamp.get("compiler_failed")) and current
        had = had - {"tpu"} if failed else had | {"tpu"} if compiler_missing else had
        write_stamp({"inputs": inputs(), "root": str(ROOT), "extras": sorted(had), "compiler_failed": failed})
    except OSError as error:
        raise explain(str(error), f"Writing to {VENV}") from None
    say(f"Set up in {time.time() - started:.0f} s.")


@contextlib.contextmanager
def lock():
    """Let one set-up at a time run here; the others wait. The system gives the lock back, however this ends.

    Raises:
        Problem: the folder may not be written to.
    """
    try:
        stream = LOCK.open("a")
    except OSError as error:
        raise explain(str(error), f"Writing to {LOCK}") from None
    with stream:
        waits = False
        while not try_lock(stream):
            if not waits:
                say("Another set-up is running here; waiting for it to end.")
            waits = True
            time.sleep(0.2)
        yield


def try_lock(stream):
    """Lock an open file, for as long as it is open; False if another process has it."""
    try:
        if os.name == "nt":
            import msvcrt

            stream.seek(0)
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        say(f"This disk has no locks ({error.strerror}): run one set-up at a time.")
    return True


def need_space(gigabytes):
    """Stop before a download that the disk cannot take.

    Raises:
        Problem: less is free.
    """
    free = shutil.disk_usage(str(ROOT)).free / 1e9
    if free < gigabytes:
        raise Problem(f"This takes {gigabytes:.1f} GB of disk and {free:.1f} GB are free: make room and run it again.")


def add_compiler():
    """Install the TPU compiler and say whether that went well; the course runs without it too."""
    say(f"  installing {COMPILER} (TPU_COMPILER=0 leaves it out) ...")
    try:
        need_space(COMPILER_GB)
        pip_install("jax[tpu]")
    except Problem as problem:
        say(f"  went on without it, the course shows stored results instead (make setup tries again): {problem}")
        return False
    return True


def main(words):
    """Run the command line; returns the exit status."""
    extra = "dev" if "dev" in words else "lab"
    if set(words) - {"lab", "dev", "--retry"}:
        say(__doc__)
        return 0 if words in (["-h"], ["--help"]) else 2
    asked = os.environ.get("TPU_COMPILER") or ("1" if extra == "lab" else "")
    compiler = "no" if asked == "0" or not compiler_fits() else "yes" if asked == "1" else "keep"
    try:
        set_up(extra, compiler, "--retry" in words)
    except Problem as problem:
        sys.stderr.write(f"{problem}\n")
        return 3
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped. Run the same command again to go on.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
