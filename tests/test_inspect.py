"""The command `tpulab inspect`: a user's own function, what it says of it, and every way it can go wrong."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from tpulab import chips, cli, xla
from tpulab.chips import stopwatch
from tpulab.cli import function, inspector, spelling
from tpulab.cli.status import Stop

MODEL = """
import jax
import jax.numpy as jnp

print("a line from the module")

def layer(x, w, b):
    return jax.nn.relu(x @ w + b)

def norm(x, *, eps=1e-5, axis):
    return (x - x.mean(axis, keepdims=True)) * jax.lax.rsqrt(x.var(axis, keepdims=True) + eps)

def mlp(params, x, n):
    for _ in range(n):
        x = jax.nn.gelu(x @ params["w"] + params["b"])
    return x

def branch(x):
    if x.sum() > 0:
        return x
    return -x

def lost(x):
    raise KeyError("lost")

def ends(x):
    raise SystemExit(4)

def big(x):
    return jnp.sin(x) @ x.T

class Model:
    @staticmethod
    def step(x):
        return 2 * x

number = 3
"""
LAYER = ("model.py:layer", "--shape", "2048x1024:bf16", "--shape", "1024x4096:bf16", "--shape", "4096:bf16")
needs_compiler = pytest.mark.usefixtures("compiler")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run in a folder with a model; gives status, output and errors without what the module prints."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TPULAB_CACHE", str(tmp_path / "cache"))
    known = set(sys.modules)
    monkeypatch.setattr(stopwatch, "ceilings_here", lambda: chips.Ceilings("here", 1e11, 1e10, "f32", "measured"))

    def call(*words):
        status = cli.main(["inspect", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err and "should not happen" not in err
        return status, out, err.replace("a line from the module\n", "")

    yield call
    for name in set(sys.modules) - known:
        if name in ("model", "code", "other"):
            del sys.modules[name]


@pytest.fixture
def compiler(run):
    """Skip where no TPU compiler works."""
    if problem := xla.compiler_problem():
        pytest.skip(problem)


def one_line(err, *words):
    assert err.startswith("tpulab: ") and err.count("\n") == 1, err
    assert all(word in err for word in words), err
    return True


def test_on_this_machine(run):
    status, out, err = run(*LAYER, "--target", "cpu")
    assert status == 0 and err == ""
    assert "layer compiled for this machine's CPU, 1 device" in out and "before" in out
    assert "layer is compute-bound on here (modelled from ceilings measured here)" in out
    assert "the compiler's claim, not measured on hardware" in out


def test_json_on_this_machine(run):
    """Of a function that prints while it is traced, standard output holds JSON alone; FLOPs by hand."""
    status, out, _ = run(*LAYER, "--target", "cpu", "--json")
    told = json.loads(out)
    assert status == 0 and told["target"] == "cpu" and told["name"] == "layer"
    assert 2 * 2048 * 1024 * 4096 <= told["compiled"]["after"]["flops"] <= 1.01 * 2 * 2048 * 1024 * 4096
    assert told["compiled"]["launches"] and told["modelled"]["bound"] == "compute"
    assert told["modelled"]["ceilings"]["origin"] == "measured"


def test_picture(run, tmp_path):
    status, _, err = run(*LAYER, "--target", "cpu", "--svg", tmp_path / "layer.svg")
    assert status == 0 and err == f"picture: {tmp_path / 'layer.svg'}\n"
    assert ElementTree.parse(tmp_path / "layer.svg").getroot().get("role") == "img"


@pytest.mark.parametrize(
    "words",
    [
        ("model:layer", "--shape", "4x8", "--shape", "8x2", "--shape", "2"),
        ("model.py:layer", "--shape", "w=8x2", "--shape", "4x8", "--shape", "b=2"),
        ("model.py:norm", "--shape", "8x128", "--static", "axis=-1"),
        ("model.py:mlp", "--shape", "{'w': '8x8:bf16', 'b': '8:bf16'}", "--shape", "4x8:bf16", "--static", "n=2"),
        ("model.py:Model.step", "--shape", ":f32"),
        ("jax.numpy:sin", "--shape", "3"),
    ],
    ids=lambda words: words[0],
)
def test_ways_to_name_and_call(run, words):
    status, out, err = run(*words, "--target", "cpu")
    assert status == 0 and err == "" and "kernels" in out


def test_a_file_named_like_a_module_of_pythons(run, tmp_path):
    (tmp_path / "project" / "code.py").write_text("def double(x):\n    return 2 * x\n", encoding="utf-8")
    for what in ("code:double", "code.py:double", tmp_path / "project" / "code.py:double"):
        status, out, _ = run(what, "--shape", "4", "--target", "cpu")
        assert status == 0 and "double compiled for" in out


def test_fusion_off(run):
    counts = []
    for switch in ("on", "off"):
        status, out, _ = run(*LAYER, "--target", "cpu", "--fusion", switch, "--json")
        assert status == 0
        counts.append(json.loads(out)["compiled"]["after"]["kernels"])
    assert counts[0] < counts[1]


def test_reads_a_file(run, tmp_path):
    import jax
    import jax.numpy as jnp

    made = jax.jit(lambda x: jnp.sin(x) @ x.T).lower(jax.ShapeDtypeStruct((256, 256), "float32")).compile()
    (tmp_path / "made.hlo").write_text(made.as_text(), encoding="utf-8")
    status, out, _ = run(tmp_path / "made.hlo")
    assert status == 0 and "read from a file" in out and "name one with --target" in out
    status, out, _ = run(tmp_path / "made.hlo", "--target", "v6e")
    assert status == 0 and "-bound on TPU v6e (modelled)" in out
    status, out, err = run(tmp_path / "made.hlo", "--target", "v9")
    assert status == 2 and out == "" and one_line(err, "no chip is called 'v9'")
    status, _, err = run(tmp_path / "made.hlo", "--shape", "3")
    assert status == 2 and one_line(err, "with it go --target, --json and --svg alone")


SHAPES = ("--shape", "16x8", "--shape", "8x8", "--shape", "8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["model.py"], "e.g. model.py:layer"),
        ([""], "is empty"),
        ([":f"], "MODULE:FUNCTION or FILE.py:FUNCTION"),
        (["model.py:nope"], "it has layer, norm, mlp, branch"),
        (["model.py:number"], "its type is int"),
        (["nofile.py:f"], "there is no file nofile.py"),
        (["nomodule:f"], "there is no module 'nomodule'"),
        (["a-b:f"], "no module's name"),
        (["missing.hlo"], "missing.hlo: No such file"),
        (["model.py:layer"], "layer(x, w, b) got 0 --shape; give one --shape for each array"),
        (["model.py:layer", *SHAPES, "--shape", "8"], "too many positional arguments"),
        (["model.py:norm", "--shape", "8"], "missing a required argument: 'axis'"),
        (["model.py:norm", "--shape", "8", "--static", "axis=0", "--shape", "axis=8"], "by --shape and by --static"),
        (["model.py:norm", "--shape", "8", "--static", "axis"], "--static is name=value"),
        (["model.py:norm", "--shape", "8", "--static", "axis=1", "--static", "axis=2"], "gives axis twice"),
        (["model.py:layer", "--shape", "8,8"], "--shape is sizes and a type"),
        (["model.py:layer", "--shape", "8:f99"], "there is no type 'f99'"),
        (["model.py:layer", "--shape", "8:f64"], "JAX_ENABLE_X64=1"),
        (["model.py:layer", "--shape", "{'w': 3}"], "each shape is a text"),
        (["model.py:layer", "--shape", "{'w'"], "a tree is written like"),
        (["model.py:layer", *SHAPES, "--target", "v9"], "there is no TPU chip 'v9'"),
        (["model.py:layer", *SHAPES, "--target", "v5p-128"], '64 chips, e.g. "v5p:4x4x4"'),
        (["model.py:layer", *SHAPES, "--target", "cpu", "--mesh", "data=2"], "--mesh is for a TPU target"),
        (["model.py:layer", *SHAPES, "--target", "v5e:2x2", "--mesh", "data=8"], "v5e:2x2 has 4"),
        (["model.py:layer", *SHAPES, "--mesh", "data=x"], "--mesh data is a whole number"),
        (["model.py:layer", *SHAPES, "--mesh", "data"], "--mesh is name=value"),
        (["model.py:layer", *SHAPES, "--spec", "data"], "give it too, e.g. --mesh"),
        (["model.py:layer", *SHAPES, "--mesh", "data=2", "--spec", "dta"], "the mesh has data, not 'dta'"),
        (["model.py:layer", *SHAPES, "--mesh", "data=2", *["--spec", "data"] * 4], "at most one each"),
        (["model.py:layer", *SHAPES, "--fusion", "maybe"], "--fusion is on or off"),
        (["model.py:layer", *SHAPES, "--svg", "no/such/x.svg"], "there is no folder"),
        (["model.py:layer", *SHAPES, "--svg", ""], "--svg is empty"),
    ],
)
def test_wrong_use_is_one_line(run, words, says):
    status, out, err = run(*words)
    assert status == 2 and out == "" and one_line(err, says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["layer", "--shape", "8x8", "--shape", "9x8", "--shape", "8"], "model.py:8 (return jax.nn.relu(x @ w + b))"),
        (["branch", "--shape", "8"], "raises TracerBoolConversionError: "),
        (["lost", "--shape", "8"], "raises KeyError: 'lost', at model.py:"),
        (["ends", "--shape", "8"], "raises SystemExit: 4, at model.py:"),
    ],
)
def test_errors_of_the_users_function_name_its_line(run, words, says):
    status, out, err = run(f"model.py:{words[0]}", *words[1:], "--target", "cpu")
    assert status == 3 and out == "" and one_line(err, says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(x:\n", "other.py, line 1: "),
        ("import no_such_package", "needs the package 'no_such_package'"),
        ("1 / 0", "raises ZeroDivisionError: division by zero, at other.py:1 (1 / 0)"),
        ("import sys; sys.exit(3)", "raises SystemExit: 3"),
    ],
)
def test_modules_that_cannot_be_imported(run, tmp_path, text, says):
    (tmp_path / "project" / "other.py").write_text(text, encoding="utf-8")
    status, out, err = run("other.py:f", "--shape", "3")
    assert status == 3 and out == "" and one_line(err, says)


def test_interrupted(run, tmp_path):
    (tmp_path / "project" / "other.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    assert run("other.py:f", "--shape", "3")[:2] == (130, "")


@pytest.mark.parametrize("data", [b"\x00\x01garbage", b"HloModule x\nENTRY nonsense", b"", b"\x1f\x8bx"])
def test_damaged_files(run, tmp_path, data):
    (tmp_path / "bad.pb").write_bytes(data)
    status, out, err = run(tmp_path / "bad.pb")
    assert status == 2 and out == "" and one_line(err, "bad.pb: ")


def test_picture_where_none_can_be_written(run, tmp_path):
    status, _, err = run("model.py:Model.step", "--shape", "4", "--target", "cpu", "--svg", tmp_path)
    assert status == 3 and one_line(err, f"--svg {tmp_path}: ")


def test_without_a_compiler(run, monkeypatch):
    monkeypatch.setenv("TPU_LIBRARY_PATH", "no/such/libtpu.so")
    status, out, err = run(*LAYER)
    assert status == 3 and out == "" and one_line(err, "libtpu.so", "; --target cpu compiles for this machine")


def test_unknown_flops_give_no_verdict(run, tmp_path):
    """A custom call that states nothing: unknown, never 0."""
    text = (
        "HloModule m\nENTRY e {\n  p = f32[8,8]{1,0} parameter(0)\n"
        '  ROOT c = f32[8,8]{1,0} custom-call(p), custom_call_target="mystery"\n}\n'
    )
    (tmp_path / "m.hlo").write_text(text, encoding="utf-8")
    status, out, _ = run(tmp_path / "m.hlo", "--target", "v5e")
    assert status == 0 and "No verdict from the roofline: its FLOPs are unknown" in out
    assert json.loads(run(tmp_path / "m.hlo", "--json")[1])["modelled"] is None


def test_spec_entries():
    from jax.sharding import PartitionSpec as P

    axes = {"data": 2, "model": 4}
    assert spelling.specs(["data,-", "data+model"], 3, axes) == [P("data", None), P(("data", "model")), P()]
    assert spelling.specs([], 3, None) is None


def test_bind_takes_what_has_no_signature():
    assert function.bind(max, ["a"], {}, {"key": 1}) == (["a"], {"key": 1})


def test_a_question_of_a_file():
    assert inspector.Question("x.HLO").of_file and not inspector.Question("x.py:hlo").of_file
    with pytest.raises(Stop, match="No such file"):
        inspector.program(inspector.Question("no.pb"))


@needs_compiler
def test_on_a_tpu(run):
    """The kernels of relu(x @ w + b) on v5e and its bytes, by hand: each array crosses once."""
    status, out, err = run(*LAYER, "--target", "v5e", "--json")
    assert status == 0 and err == ""
    told = json.loads(out)
    arrays = 2 * (2048 * 1024 + 1024 * 4096 + 4096 + 2048 * 4096)
    assert arrays <= told["compiled"]["after"]["hbm_bytes"] <= 1.01 * arrays
    assert told["chip"] == "v5e" and told["modelled"]["bound"] == "compute"
    assert told["modelled"]["ceilings"]["origin"] == "published"


@needs_compiler
def test_over_a_mesh(run):
    words = (
        "--target",
        "v5e:2x2",
        "--mesh",
        "data=2,model=2",
        "--spec",
        "data,-",
        "--spec",
        "-,model",
        "--spec",
        "model",
    )
    status, out, _ = run(*LAYER, *words, "--json")
    told = json.loads(out)
    assert status == 0 and told["devices"] == 4 and told["compiled"]["collectives"] == []
    assert told["compiled"]["after"]["flops"] == pytest.approx(2 * 2048 * 1024 * 4096 / 4, rel=0.01)


@needs_compiler
def test_too_large_for_hbm(run):
    status, out, err = run("model.py:big", "--shape", "100000x100000", "--target", "v5e")
    assert status == 1 and "f32[100000,100000]" in out and one_line(err, "15.75 GiB can be used", "smaller batch")
    status, out, _ = run("model.py:big", "--shape", "100000x100000", "--target", "v5e", "--json")
    told = json.loads(out)
    assert status == 1 and told["fits"] is False and told["needed_bytes"] > told["available_bytes"]


@needs_compiler
def test_an_axis_that_does_not_divide(run):
    words = (
        "--shape",
        "9x8",
        "--shape",
        "8x8",
        "--shape",
        "8",
        "--target",
        "v5e:2x2",
        "--mesh",
        "data=4",
        "--spec",
        "data",
    )
    status, out, err = run("model.py:layer", *words)
    assert status == 2 and out == "" and one_line(err, "axis 0 of x has size 9", "pad it to 12")


@needs_compiler
def test_nothing_else_on_standard_error(run, tmp_path):
    """In a fresh process, where the compiler is loaded for the first time."""
    command = [sys.executable, "-m", "tpulab", "inspect", *LAYER]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TPULAB_CACHE": str(tmp_path / "other")}
    env.pop("JAX_PLATFORMS")
    done = subprocess.run(command, cwd=tmp_path / "project", env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stderr == "a line from the module\n", done.stderr
    assert "is compute-bound on TPU v5e (modelled)" in done.stdout
