"""Sources keep to the JAX that all version sets have, and to nothing of one machine."""

import ast
import re
import subprocess
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [
    path
    for folder in ("course", "tpulab", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "compat.py" and "blind" not in path.parts
]

# What a version set lacks or warns about, and what to write. Allowed inside `with tpulab.expect_error(...)`, where
# a chapter shows what an old form does today, in wrong answers, and in compat.py.
REMOVED = {
    "jax.tree_map": "jax.tree.map",
    "jax.tree_flatten": "jax.tree.flatten",
    "jax.tree_unflatten": "jax.tree.unflatten",
    "jax.tree_leaves": "jax.tree.leaves",
    "jax.tree_structure": "jax.tree.structure",
    "jax.tree_transpose": "jax.tree.transpose",
    "jax.tree_multimap": "jax.tree.map",
    "jax.tree_util.tree_multimap": "jax.tree.map",
    "jax.soft_pmap": "jax.vmap inside jax.pmap",
    "jax.xla_computation": "jax.jit(f).lower(...)",
    "jax.linear_util": "jax.extend.linear_util",
    "jax.experimental.maps": "jax.shard_map",
    "jax.experimental.shard_map": "jax.shard_map",
    "jax.experimental.pjit": "jax.jit",
    "jax.sharding.PositionalSharding": "jax.sharding.NamedSharding",
    "jax.sharding.use_mesh": "jax.set_mesh",
    "jax.Mesh": "jax.sharding.Mesh",
    "jax.reshard": "jax.sharding.reshard",
    "jax.enable_x64": "jax.config.update",
    "jax.device_put_replicated": "jax.device_put with a NamedSharding",
    "jax.device_put_sharded": "jax.device_put with a NamedSharding",
    "jax.lax.pvary": "a shim in tpulab/compat.py",
    "jax.lax.pcast": "a shim in tpulab/compat.py",
    "jax.lib.xla_bridge": "jax.default_backend()",
    "jax.tools.colab_tpu": "nothing: JAX finds the TPU itself",
    "jax.abstract_arrays": "jax.core.ShapedArray",
    "flax.nnx.List": "getattr(nnx, 'List', list)",
}
KEYWORDS = {"check_rep": "check_vma", "a_min": "min", "a_max": "max"}
DECORATORS = ("jax.pmap", "jax.jit")  # as factories they fail on a set: @jax.jit(static_argnames=...)


def is_shown_on_purpose(node: ast.AST) -> bool:
    """Say whether a piece of code is there to fail: under expect_error, or a bank's wrong answer."""
    if isinstance(node, ast.With):
        return any("expect_error" in ast.unparse(item.context_expr) for item in node.items)
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(one).startswith("wrong(") for one in node.decorator_list
    )


def called_only_to_fail(tree: ast.AST) -> set[str]:
    """Name the functions that are called, and nowhere but where an error is expected."""
    inside, everywhere = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            everywhere.append(node.func.id)
        if isinstance(node, ast.With) and is_shown_on_purpose(node):
            inside += [
                one.func.id for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
            ]
    return {name for name in inside if inside.count(name) == everywhere.count(name)}


def aliases(tree: ast.AST) -> dict[str, str]:
    """Map the names that a file gives to modules, e.g. {"jnp": "jax.numpy", "lax": "jax.lax"}."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {item.asname: item.name for item in node.names if item.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    return found


def dotted(node: ast.AST, known: dict[str, str]) -> str:
    """Write out a chain of attributes with aliases resolved; "" if it is none."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([known.get(node.id, node.id), *reversed(parts)])


def stale(text: str) -> list[str]:
    """List what a source uses that a version set lacks, with line and what to write."""
    tree = ast.parse(text)
    known, failing = aliases(tree), called_only_to_fail(tree)
    found = []

    def visit(node: ast.AST) -> None:
        if is_shown_on_purpose(node) or (isinstance(node, ast.FunctionDef) and node.name in failing):
            return
        names = []
        if isinstance(node, ast.Attribute | ast.Name):
            names = [dotted(node, known)]
        elif isinstance(node, ast.Import):
            names = [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{item.name}" for item in node.names)]
        elif isinstance(node, ast.Call):
            called = dotted(node.func, known)
            if called.startswith("jax"):
                found.extend(
                    f"line {node.lineno}: {word.arg}=; write {KEYWORDS[word.arg]}="
                    for word in node.keywords
                    if word.arg in KEYWORDS
                )
            if called in DECORATORS and not node.args:
                found.append(f"line {node.lineno}: {called}(...) without a function; write functools.partial")
            if called == "jax.make_mesh" and "axis_types" not in {word.arg for word in node.keywords}:
                found.append(f"line {node.lineno}: jax.make_mesh without axis_types=, whose default differs")
        for name in names:
            hit = next((old for old in REMOVED if name == old or name.startswith(old + ".")), None)
            if hit:
                found.append(f"line {getattr(node, 'lineno', 0)}: {name}; write {REMOVED[hit]}")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_use_no_removed_name(path):
    assert not stale(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "import jax\njax.tree_map(f, x)",
        "import jax as j\nj.tree_map",
        "import jax\ndef old(x):\n    jax.tree_map(f, x)\nwith expect_error(E):\n    old(1)\nold(2)",
        "from jax import tree_map",
        "from jax.experimental import shard_map",
        "from jax.experimental.shard_map import shard_map",
        "import jax.experimental.pjit",
        "import jax\njax.make_mesh((2,), ('d',))",
        "import jax\njax.shard_map(f, check_rep=False)",
        "import jax.numpy as jnp\njnp.clip(x, a_min=0)",
        "import jax\n@jax.pmap(axis_name='d')\ndef f(x): ...",
        "import jax\n@jax.jit(static_argnames='n')\ndef f(x, n): ...",
        "from jax import lax\nlax.pvary",
        "from flax import nnx\nnnx.List([])",
    ],
)
def test_scan_finds(text):
    assert stale(text)


@pytest.mark.parametrize(
    "text",
    [
        "import jax, tpulab\nwith tpulab.expect_error(AttributeError):\n    jax.tree_map(f, x)",
        "import jax\njax.tree.map(f, x)",
        "import jax\ndef old(x):\n    jax.tree_map(f, x)\nwith tpulab.expect_error(AttributeError):\n    old(1)",
        "import jax\n'jax.tree_map'  # only a text",
        "import jax\n@wrong('gone')\ndef old(x):\n    return jax.tree_map(f, x)",
        "import jax\njax.make_mesh((2,), ('d',), axis_types=(jax.sharding.AxisType.Auto,))",
        "import functools, jax\n@functools.partial(jax.pmap, axis_name='d')\ndef f(x): ...",
    ],
)
def test_scan_allows(text):
    assert not stale(text)


def tracked() -> list[Path]:
    """List the project's text files: what git tracks or would track."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files are the project's")
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for name in listed if (path := ROOT / name).is_file() and path.suffix not in (".png", ".ico")]


# The words are put together here, so that this file passes its own test.
HOSTS = re.compile(
    "|".join(map("".join, [("py", r"pi\."), ("python", r"hosted\."), ("npm", r"js\."), ("--index", "-url")]))
)
MACHINE = re.compile(r"(?<![\w.~<}])/(home|Users|root|work|tmp)/\w[\w.-]*/")


def text_of(path: Path) -> str:
    """Give a file's text; of a stored compiler result all that is in it."""
    data = path.read_bytes()
    return zlib.decompress(data.partition(b"\n")[2]).decode("latin-1") if path.suffix == ".z" else data.decode()


@pytest.mark.parametrize(("pattern", "what"), [(HOSTS, "a package registry"), (MACHINE, "a path of one machine")])
def test_no_trace_of_one_machine(pattern, what):
    found = []
    for path in tracked():
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if hit := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {hit.group()}")
    assert not found, f"{what}: {found[:10]}"
