"""HLO as text, files and bytes; XLA's parser may die of a text, this process may not."""

import pytest

from tpulab.xla.module import decode
from tpulab.xla.text import load, parse_text
from tpulab.xla.wire import Malformed

from . import corpus

ADD = """HloModule add

ENTRY main {
  x = f32[4]{0} parameter(0)
  ROOT y = f32[4]{0} add(x, x)
}
"""


def shape_of(module):
    return [(item.opcode, str(item.shape)) for item in module.entry.instructions]


@pytest.fixture(scope="module")
def built():
    return corpus.small("train", "cpu")


def test_text_gives_the_same_program_as_bytes(built):
    assert shape_of(decode(parse_text(built.compiled.as_text()))) == shape_of(decode(built.after))


def test_load_tells_apart_what_it_is_given(built, tmp_path):
    files = {"p.pb": built.after, "p.txt": built.compiled.as_text().encode(), "p.hlo": ADD.encode()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    wanted = shape_of(decode(built.after))
    assert shape_of(load(built.after)) == wanted
    assert shape_of(load(tmp_path / "p.pb")) == wanted
    assert shape_of(load(str(tmp_path / "p.txt"))) == wanted
    assert [opcode for opcode, _ in shape_of(load(ADD))] == ["parameter", "add"]
    assert load(tmp_path / "p.hlo").name == "add"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ADD.replace("add(x, x)", "add(x, z)"), "stops at line 5: instruction does not exist: z"),
        (ADD.replace("add(x, x)", "weird(x)"), "stops at line 5: .*weird"),
        ("HloModule add", "stops at line"),
        ("hello\nthere", "stops at line"),
        (b"", "is empty"),
        (b"  \n ", "HLO|field|empty|wire"),
        ("module @jit_f {\n  func.func @main\n}", "StableHLO"),
        ("{ lambda ; a:f32[4]. let\n b = add a a in (b,) }", "jaxpr"),
        (b"ML\xefR\x0dStableHLO", "MLIR bytecode"),
        (b"\x1f\x8b\x08\x00", "compressed"),
        (b"\x7fELF\x02\x01\x01\x00", "."),
    ],
)
def test_what_is_no_hlo_gets_one_line(text, words):
    with pytest.raises(Malformed, match=words) as caught:
        load(text)
    assert len(str(caught.value).splitlines()) == 1


def test_a_parser_that_dies_or_hangs_is_one_line(monkeypatch):
    from tpulab.xla import text

    for program, words in {
        "import os; os.abort()": "crashed",
        "import time; time.sleep(60)": "did not end within 0.5 s",
        "import sys; sys.exit(0)": "crashed",
        "raise SystemExit('one\\ntwo')": "two",
    }.items():
        monkeypatch.setattr(text, "_PARSER", program)
        with pytest.raises(Malformed, match=words):
            parse_text(ADD, timeout_s=0.5 if "sleep" in program else 20)


def test_a_text_that_wants_all_memory_is_refused():
    with pytest.raises(Malformed):
        parse_text(ADD.replace("add(x, x)", "constant({" + "1," * 10 + "})").replace("f32[4]", "f32[4000000000000]"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.pb")
    with pytest.raises(TypeError, match="path, bytes or text"):
        load(3)  # type: ignore[arg-type]


def test_text_and_bytes_mixed(built):
    """Neither half of one in the other is read as anything but damage."""
    text, data = built.compiled.as_text().encode(), built.after
    for mixed in (text[:300] + data, data[:300] + text, text + data, data + text, text[: len(text) // 2]):
        with pytest.raises(Malformed):
            load(mixed)
