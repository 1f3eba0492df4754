"""The picture and the tables of a program, on programs made by hand."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from tpulab.xla import draw, report
from tpulab.xla.program import Counts, Edge, Kernel, Program

MB = 10**6
SVG = "{http://www.w3.org/2000/svg}"


def kernel(position, *, name="", kind="loop fusion", steps=("add",), read=MB, written=MB, **changes):
    made = Kernel(
        name=name or f"fusion.{position}",
        kind=kind,
        opcode="fusion",
        opcodes=steps,
        times=1,
        flops=1000,
        bytes_read=read,
        bytes_written=written,
        estimated_cycles=500,
        steps=steps,
        source=("y = x + b  # a < b & c",),
        dma=False,
        position=position,
    )
    return replace(made, **changes)


def program(*launches, edges=(), **changes):
    kernels = tuple(one for one in launches if not one.dma)
    dmas = tuple(one for one in launches if one.dma)
    counts = Counts(len(kernels), len(dmas), sum(one.hbm_bytes for one in launches), 2 * 10**9, 0, 1234567)
    made = Program(
        name="layer",
        target="v5e:2x2",
        chip="v5e",
        devices=1,
        counts=counts,
        kernels=kernels,
        dmas=dmas,
        edges=tuple(edges),
        collectives=(),
        before=Counts(10, 0, 3154 * MB, 2 * 10**9, 0, None),
        memory=None,
        module=None,  # type: ignore[arg-type]
        versions={"jax": "0.10.2", "libtpu": "0.0.42.1"},
        date="2026-11-30",
        options={},
        notes=(),
        recorded=False,
    )
    return replace(made, **changes)


def parsed(text):
    """Read a picture as the browser does: as XML."""
    return ElementTree.fromstring(text)


def words(text):
    return [element.text or "" for element in parsed(text).iter(f"{SVG}text")]


def arrows(text):
    """Give each trip to HBM: (its thickness, whether it is a read)."""
    lines = parsed(text).iter(f"{SVG}line")
    return [(float(line.attrib["stroke-width"]), line.attrib["stroke"] == draw.READS) for line in lines]


def test_arrows_are_as_thick_as_their_bytes():
    edges = [
        Edge("", "fusion.1", "x", "bf16[16384,4096]", 100 * MB, "HBM"),
        Edge("", "fusion.1", "w", "bf16[4096,8192]", 50 * MB, "HBM"),
        Edge("fusion.1", "", "", "bf16[16384,8192]", 200 * MB, "HBM"),
    ]
    picture = draw.svg(program(kernel(1, read=150 * MB, written=200 * MB), edges=edges))
    assert arrows(picture) == [(7.5, True), (3.8, True), (15.0, False)]
    said = words(picture)
    assert "x bf16[16384,4096] 100 MB" in said
    assert "result 200 MB" in said


def test_a_value_says_where_it_comes_from_and_goes_to():
    edges = [Edge("a", "b", "", "f32[8]", MB, "HBM"), Edge("b", "", "", "f32[8]", MB, "HBM")]
    said = words(draw.svg(program(kernel(1, name="a"), kernel(2, name="b"), edges=edges)))
    assert "from 1 f32[8] 1 MB" in said
    assert "for 2 1 MB" in said


def test_what_stays_on_the_chip_is_no_trip():
    edges = [Edge("a", "b", "", "f32[8]", 2 * MB, "VMEM")]
    picture = draw.svg(program(kernel(1, name="a", written=0), kernel(2, name="b", read=0), edges=edges))
    assert len(arrows(picture)) == 2
    assert "VMEM 2 MB" in words(picture)


def test_dmas_and_collectives_are_marked_in_words():
    launches = (
        kernel(1, kind="copy", dma=True),
        kernel(2, kind="all-reduce"),
        kernel(3, times=28),
        kernel(4, times=None),
    )
    said = words(draw.svg(program(*launches)))
    assert "1  DMA: copy" in said and "2  ⇄ all-reduce" in said
    assert "runs 28 times" in said and "runs ? times" in said


def test_many_steps_wrap_inside_the_page():
    steps = tuple(f"a_rather_long_operation_{number}" for number in range(30))
    picture = draw.svg(program(kernel(1, steps=steps)))
    for rectangle in parsed(picture).iter(f"{SVG}rect"):
        assert float(rectangle.attrib.get("x", 0)) + float(rectangle.attrib["width"]) <= draw.WIDTH
    assert "+ 16" in words(picture)


def test_a_long_program_shows_its_largest():
    launches = [kernel(number, read=number * MB) for number in range(1, 61)]
    made = program(*launches)
    shown = [word for word in words(draw.svg(made)) if re.match(r"\d+  loop", word)]
    assert shown == [f"{number}  loop fusion" for number in range(61 - draw.LARGEST, 61)]
    assert "the 12 largest of 60 launches" in " ".join(words(draw.svg(made)))
    assert [row[0] for row in report.launches(made)[1:4]] == ["60", "59", "58"]
    assert "… and 20 smaller ones" in report.text(made)


def test_picture_is_small_the_same_each_time_and_without_ids():
    made = program(*(kernel(number) for number in range(1, 11)))
    picture = draw.svg(made)
    assert picture == draw.svg(made)
    assert len(picture.encode()) < 25_000
    assert " id=" not in picture and "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_picture_has_words_for_who_does_not_see_it():
    root = parsed(draw.svg(program(kernel(1, steps=("dot_general", "max")))))
    assert root.attrib["role"] == "img"
    said = (root.findtext(f"{SVG}desc") or "") + (root.findtext(f"{SVG}title") or "")
    for wanted in ("layer", "v5e:2x2", "1 kernel", "dot_general, max", "2 MB to and from HBM"):
        assert wanted in said


def test_a_program_without_launches():
    made = program()
    assert "0 kernels" in draw.svg(made)
    assert "0 kernels" in report.spoken(made)
    report.text(made)


def test_before_and_after_stand_side_by_side():
    rows = {row[0]: row[1:] for row in report.comparison(program(kernel(1)))}
    assert rows["kernels"] == ("10", "1")
    assert rows["bytes to and from HBM"] == ("3.15 GB", "2 MB")
    assert rows["estimated cycles"] == ("none given", "1,234,567")
    unknown = program(kernel(1), before=None, counts=Counts(1, 0, MB, None, None, None, ("custom call f",)))
    rows = {row[0]: row[1:] for row in report.comparison(unknown)}
    assert rows["FLOPs"] == ("-", "unknown")
    assert "Not counted: custom call f." in report.text(unknown)


def test_on_a_cpu_it_is_memory_and_no_hbm():
    said = report.text(program(kernel(1), target="cpu", chip=None))
    assert "this machine's CPU" in said and "bytes to and from memory" in said and "HBM" not in said


def test_page_is_html_that_escapes_and_needs_nothing():
    page = program(kernel(1), name="<script>", notes=("a < b",))._repr_html_()
    assert "<script>" not in page and "a &lt; b" in page
    assert re.search(r'<img alt="&lt;script&gt; compiled for v5e:2x2', page)
    assert "data:image/svg+xml;base64," in page


def test_saved_picture_is_the_picture(tmp_path):
    made = program(kernel(1))
    made.save_svg(tmp_path / "layer.svg")
    assert (tmp_path / "layer.svg").read_text(encoding="utf-8") == made.svg()
