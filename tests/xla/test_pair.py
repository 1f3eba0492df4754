"""Whether a compiler works here, and what a user reads when none does."""

import os
import subprocess
import sys

import pytest

from tpulab.xla import CompilerMissing, pair

BAD = (
    ("SIGSEGV", "os.kill(os.getpid(), signal.SIGSEGV)"),
    ("RuntimeError: no such thing", "raise RuntimeError('no such thing')"),
)
READ_LOADED = pair._loaded  # as it is, also where a test replaces it


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Forget verdicts, and pretend that a library is here."""
    library = tmp_path / "libtpu" / "libtpu.so"
    library.parent.mkdir()
    library.write_bytes(b"not really")
    (tmp_path / "libtpu-9.8.7.dist-info").mkdir()
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    monkeypatch.setenv("TPULAB_CACHE", str(tmp_path / "cache"))
    for name in pair._QUIET:  # set by whatever test compiled first
        monkeypatch.setenv(name, os.environ.get(name, pair._QUIET[name]))
    monkeypatch.setattr(pair, "_loaded", lambda: None)
    pair._verdict.cache_clear()
    yield library
    pair._verdict.cache_clear()


@pytest.mark.parametrize(("words", "code"), BAD)
def test_a_pair_that_fails_counts_as_absent(fresh, monkeypatch, words, code):
    monkeypatch.setattr(pair, "_TRIAL", f"import os, signal\n{code}")
    with pytest.raises(CompilerMissing) as caught:
        pair.prepare()
    text = str(caught.value)
    assert words in text and "libtpu 9.8.7 cannot compile here" in text and "\n" not in text
    assert "pip install --target libtpu-side --no-deps 'libtpu" in text and "TPU_LIBRARY_PATH" in text


def test_the_verdict_is_kept_until_the_library_changes(fresh, monkeypatch):
    monkeypatch.setattr(pair, "_TRIAL", "print('it works')")
    assert pair.prepare().libtpu == "9.8.7"
    pair._verdict.cache_clear()
    monkeypatch.setattr(pair, "_TRIAL", "raise RuntimeError('must not run')")
    pair.prepare()
    fresh.write_bytes(b"another one")
    with pytest.raises(CompilerMissing, match="must not run"):
        pair.prepare()


def test_a_trial_that_takes_too_long_is_no_lasting_verdict(fresh, monkeypatch):
    monkeypatch.setattr(pair, "_TRIAL", "import time; time.sleep(60)")
    assert pair.try_out(fresh, timeout_s=0.5) == ("it took more than 0 s", False)


def test_a_trial_that_was_killed_is_no_lasting_verdict(fresh, monkeypatch):
    monkeypatch.setattr(pair, "_TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(CompilerMissing, match=r"SIGKILL.*try again"):
        pair.prepare()
    monkeypatch.setattr(pair, "_TRIAL", "print('it works')")
    pair.prepare()


def test_a_library_that_is_not_there(monkeypatch):
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/nowhere/libtpu.so")
    with pytest.raises(CompilerMissing, match=r"TPU_LIBRARY_PATH names no file: '/nowhere/libtpu\.so'"):
        pair.prepare()


def test_another_library_that_is_already_loaded(fresh, tmp_path, monkeypatch):
    """Two in one process end it, so nothing is tried."""
    other = tmp_path / "libtpu.so"
    other.write_bytes(b"first")
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 08:01 42 {other}\n7f02-7f03 rw-p 00000000 00:00 0\n")
    assert READ_LOADED(maps) == other and READ_LOADED(tmp_path / "none") is None
    monkeypatch.setattr(pair, "_loaded", lambda: other)
    with pytest.raises(CompilerMissing, match=r"already loaded another TPU library .*restart the kernel"):
        pair.prepare()


@pytest.mark.parametrize(
    ("system", "machine", "words"),
    [
        ("linux", "x86_64", "pip install 'libtpu==.*then try again"),
        ("linux", "aarch64", "Colab CPU runtime; compile_here works"),
        ("darwin", "arm64", "Colab CPU runtime; compile_here works"),
        ("win32", "AMD64", "use WSL2"),
    ],
)
def test_no_library_at_all(monkeypatch, system, machine, words):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(pair.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(pair.sys, "platform", system)
    monkeypatch.setattr(pair.platform, "machine", lambda: machine)
    with pytest.raises(CompilerMissing, match=f"no TPU compiler is installed here; .*{words}"):
        pair.prepare()


def test_the_environment_of_a_real_tpu_is_left_alone(fresh, monkeypatch):
    monkeypatch.setattr(pair, "_TRIAL", "print('it works')")
    monkeypatch.setattr(pair, "tpu_chips", lambda: ["v5e"])
    for name in pair._QUIET:
        monkeypatch.delenv(name)
    pair.prepare()
    assert not set(pair._QUIET) & set(os.environ)


def test_what_a_user_has_set_stays(fresh, monkeypatch):
    monkeypatch.setattr(pair, "_TRIAL", "print('it works')")
    monkeypatch.setattr(pair, "tpu_chips", list)
    monkeypatch.setenv("TPU_LOG_DIR", "mine")
    pair.prepare()
    assert os.environ["TPU_LOG_DIR"] == "mine"


_QUIET_RUN = """
from tpulab.xla.compiler import compiled_for
from tpulab.xla.lowering import Call
import jax, jax.numpy as jnp
print(len(jax.devices()), jax.default_backend())
made = compiled_for("v5e:2x2", Call(lambda x: jnp.tanh(x @ x), (jnp.ones((64, 64)),)))
print(made.target, len(made.after) > 500)
"""


@pytest.mark.parametrize("first", ["", "import jax; jax.devices()"])
def test_nothing_is_written_to_stderr(needs_compiler, first):
    """Two at once: each loads the library, and neither locks the other out."""
    command = [sys.executable, "-c", f"{first}\n{_QUIET_RUN}"]
    env = {name: value for name, value in os.environ.items() if name not in pair._QUIET}
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]
    for run in runs:
        out, err = run.communicate(timeout=200)
        assert (out, err) == ("8 cpu\nv5e:2x2 True\n", "")
