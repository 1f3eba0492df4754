"""Kernels, bytes, FLOPs and cycles: against figures recorded by hand, NumPy and XLA's own cost analysis."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tpulab.xla.compiled import Compiled
from tpulab.xla.instruction import Instruction
from tpulab.xla.module import decode
from tpulab.xla.reading import counts_of, from_compiled, program_of
from tpulab.xla.shape import Shape
from tpulab.xla.work import Counter

from . import corpus
from .corpus import B, F, I, s

PAIR = jax.__version_info__ >= (0, 10)  # earlier compilers make other kernels of attention and tanh
OFF = {"xla_disable_hlo_passes": "tpu_fusion"}
LAYER = s(16384, 4096), s(4096, 8192), s(8192), s()
HEADS = [s(2, 16, 4096, 128)] * 3


@pytest.fixture(params=["cpu", "v5e:2x2", "v6e:2x2"])
def target(request):
    corpus.device(request.param)
    return request.param


def read(built, name="f"):
    return program_of(decode(built.after), name=name, target="x", before=counts_of(decode(built.before)))


def flops(program):
    """FLOPs that must be known."""
    assert program.counts.flops is not None
    return program.counts.flops


def small(name, target):
    return read(corpus.small(name, target), name)


# Recorded on v5e with jax 0.10.2 + libtpu 0.0.42.1 and jax 0.12.0.1 + libtpu 0.0.50.1 from the compiler's text:
# operations and bytes before; kernels, DMAs, bytes, cycles after.
RECORDED = {
    "chain": ([corpus.chain, s(2048, 1024), s(1024, 4096), s(4096), s()], 10, 230_744_068, 2, 1, 29_368_832, 153_692),
    "elementwise": (
        [corpus.elementwise, s(8192, 4096), s(4096), s()],
        *(11, 1_140_908_036, 2, 0, 134_226_432, 606_241),
    ),
    "softmax": ([corpus.softmax, s(8192, 4096)], 17, 1_074_167_816, 3, 1, 201_327_104, 1_950_304),
    "attention": (
        [corpus.attention, *[s(4, 16, 1024, 128)] * 3],
        *(21, 3_023_306_762, 2, 2, 335_544_320, 977_488),
    ),
    "layernorm": (
        [corpus.layernorm, s(8192, 4096), s(4096), s(4096)],
        *(37, 2_215_575_566, 5, 3, 201_342_976, 1_547_504),
    ),
    "mlp": (
        [corpus.mlp, s(2048, 1024), s(1024, 4096), s(4096), s(4096, 1024), s(1024)],
        *(25, 645_994_504, 2, 3, 25_176_064, 281_683),
    ),
}
# Kernels, bytes and cycles with the fusion pass and without it, recorded in the same way.
FUSION = {
    "chain": ([corpus.chain, *LAYER], (2, 469_778_944, 8_570_536), (7, 3_154_134_016, 32_857_817)),
    "elementwise": (
        [corpus.elementwise, s(32768, 8192), s(8192), s()],
        (2, 1_073_758_720, 4_833_793),
        (9, 9_126_822_912, 65_776_417),
    ),
    "layernorm": (
        [corpus.layernorm, s(32768, 8192), s(8192), s(8192)],
        (5, 2_147_516_416, 12_320_434),
        (17, 11_274_586_112, 87_861_990),
    ),
    "softmax": (
        [corpus.softmax, s(32768, 8192)],
        (3, 2_147_484_160, 15_569_568),
        (7, 6_442_451_968, 54_415_936),
    ),
    "mlp": (
        [corpus.mlp, s(16384, 4096), s(4096, 16384), s(16384), s(16384, 4096), s(4096)],
        (2, 1_610_653_696, 39_011_618),
        (17, 19_058_960_384, 167_157_614),
    ),
    "attention": ([corpus.attention, *HEADS], (2, 2_281_701_376, 7_351_456), (3, 4_429_185_536, 24_886_208)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_programs(name):
    (function, *shapes), *wanted = RECORDED[name]
    program = read(corpus.build("v5e:2x2", function, *shapes))
    before, after = program.before, program.counts
    assert before is not None
    assert [before.kernels, before.hbm_bytes] == wanted[:2]
    if PAIR or name in ("chain", "layernorm"):
        assert [after.kernels, after.dmas, after.hbm_bytes, after.estimated_cycles] == wanted[2:]


# Of the others, earlier compilers make other kernels.
@pytest.mark.parametrize("name", FUSION if PAIR else ["chain", "layernorm"])
def test_recorded_programs_with_fusion_and_without(name):
    (function, *shapes), *wanted = FUSION[name]
    for options, figures in zip((None, OFF), wanted, strict=True):
        counts = read(corpus.build("v5e:2x2", function, *shapes, options=options)).counts
        assert (counts.kernels, counts.hbm_bytes, counts.estimated_cycles) == figures


def theirs(built):
    cost = built.compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return cost["flops"], cost.get("transcendentals", 0.0)


@pytest.mark.parametrize("name", sorted(set(corpus.SMALL) - {"scan", "search", "branch", "attention", "dropout"}))
def test_flops_are_those_of_xla(name, target):
    """No loop, no branch and no custom call is in these. XLA's figures are 32-bit floats: 34,472,449 becomes …448."""
    built = corpus.small(name, target)
    counts = read(built).counts
    assert (np.float32(counts.flops), counts.transcendentals) == theirs(built)


@pytest.mark.parametrize("target", ["v5e:2x2", "v6e:2x2"])
def test_reinterpreting_bits_is_no_arithmetic(target):
    """XLA counts each number that bitcast-convert relabels, here one for each random number; nothing is computed."""
    built = corpus.small("dropout", target)
    assert np.float32(flops(small("dropout", target)) + 256 * 512) == theirs(built)[0]


def test_flops_by_hand():
    product = corpus.build("cpu", lambda x, w: x @ w, s(7, 11, dtype=F), s(11, 13, dtype=F))
    assert read(product).counts.flops == 2 * 7 * 11 * 13
    batched = corpus.build("cpu", lambda x, w: jnp.einsum("bij,bjk->bik", x, w), s(3, 7, 11), s(3, 11, 13))
    assert counts_of(decode(batched.before)).flops == 2 * 3 * 7 * 11 * 13
    sums = counts_of(decode(corpus.build("cpu", lambda x: jnp.exp(x).sum(), s(8, 9, dtype=F)).before))
    assert (sums.flops, sums.transcendentals) == (71, 72)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "base"),
    [(1, "VALID", 1, 1), (2, "SAME", 1, 1), (1, ((2, 3),), 3, 1), (3, ((1, 4),), 2, 1), (1, ((2, 2),), 1, 2)],
)
def test_convolutions_count_what_meets_a_number(stride, padding, dilation, base):
    size, window = 17, 4
    built = corpus.build(
        "cpu",
        lambda x, k: lax.conv_general_dilated(
            x, k, (stride,), padding, (base,), (dilation,), dimension_numbers=("NWC", "WIO", "NWC")
        ),
        s(2, size, 3, dtype=F),
        s(window, 3, 5, dtype=F),
    )
    result = decode(built.before).entry.root.shape.dims[1]
    if padding == "VALID":
        low = 0
    elif padding == "SAME":
        low = max(0, (result - 1) * stride + window - size) // 2
    else:
        low = padding[0][0]
    places = [o * stride + k * dilation - low for o in range(result) for k in range(window)]
    meets = sum(0 <= place <= (size - 1) * base and place % base == 0 for place in places)
    assert counts_of(decode(built.before)).flops == 2 * meets * 2 * 3 * 5


def test_an_unknown_custom_call_is_never_zero():
    built = corpus.small("attention", "v5e:2x2")
    alone = program_of(decode(built.after), name="attention", target="v5e:2x2")
    if not any(kernel.kind.startswith("custom call") for kernel in alone.kernels):
        assert alone.counts.flops  # earlier compilers make no custom call of it
        return
    assert alone.counts.flops is None and "custom call tpu_custom_call" in alone.counts.unknown[0]
    program = read(built)
    assert flops(program) == counts_of(decode(built.before)).flops
    assert flops(program) > 2 * 2 * 2 * 4 * 256 * 256 * 64  # two products, at least
    assert theirs(built)[0] <= flops(program) / 1.9  # XLA: the call does nothing
    assert "before optimisation" in program.notes[0]


def test_a_scan_over_stacked_weights_reads_its_slice(target):
    """48 layers of 512×512 floats are read once in all, not 48 times 48."""

    def layers(x, weights):
        return lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, weights)[0]

    built = corpus.build(target, layers, s(512, 512, dtype=F), s(48, 512, 512, dtype=F))
    counts = read(built).counts
    weights = 48 * 512 * 512 * 4
    assert weights <= counts.hbm_bytes < 8 * weights


def test_an_update_in_place_writes_the_new_rows_only():
    function, *_ = corpus.SMALL["update"]
    shapes = s(8192, 1024), s(8, 1024), s(dtype=I)
    kept = read(corpus.build("v5e:2x2", function, *shapes)).counts.hbm_bytes
    given = read(corpus.build("v5e:2x2", function, *shapes, donate=(0,))).counts.hbm_bytes
    assert given < 100_000
    assert kept > 2 * 8192 * 1024 * 2  # without donation the array is copied first


def test_slices_count_as_slices():
    built = corpus.build("v5e:2x2", lambda x: x[4096:4608] * 2, s(8192, 1024))
    assert read(built).counts.hbm_bytes == 2 * 512 * 1024 * 2
    built = corpus.build(
        "v5e:2x2", lambda x, i: lax.dynamic_slice(x, (i, 0), (512, 1024)) * 2, s(8192, 1024), s(dtype=I)
    )
    assert 2 * 512 * 1024 * 2 <= read(built).counts.hbm_bytes < 2 * 512 * 1024 * 2 + 5000


def test_padding_is_paid():
    """A million rows of 3 floats: the compiler turns them so that 3 becomes 4; see the layout it chose."""
    built = corpus.build("v5e:2x2", lambda x: x * 2 + 1, s(2**20, 3, dtype=F))
    counts = read(built).counts
    assert counts.hbm_bytes in (2 * 2**20 * 4 * 4, 2 * 2**20 * 8 * 4)
    assert counts.hbm_bytes > 2 * 2**20 * 3 * 4


def test_copies_and_negative_seconds_mislead_in_xla():
    """A copy into VMEM crosses HBM once; XLA counts both ends, and what kernels read from VMEM as well."""
    (function, *shapes), *_ = RECORDED["chain"]
    built = corpus.build("v5e:2x2", function, *shapes)
    cost = built.compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    least = 2 * (2048 * 1024 + 1024 * 4096 + 4096 + 2048 * 4096)
    ours = read(built).counts.hbm_bytes
    assert least <= ours < 1.01 * least
    assert cost["bytes accessed"] > 1.5 * least


def test_from_compiled_says_what_each_kernel_does():
    corpus.device("v5e:2x2")
    built = corpus.small("train", "v5e:2x2")
    texts = Path(corpus.__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(texts, 1) if "jax.nn.relu(x @ weights[0])" in text)
    compiled = Compiled(
        name="train",
        target="v5e:2x2",
        chip="v5e",
        devices=1,
        before=built.before,
        after=built.after,
        versions={"jax": jax.__version__},
        date="2026-11-30",
        lines={(corpus.__file__, line): "loss = relu(x @ w1) @ w2"},
        notes=("a note",),
    )
    program = from_compiled(compiled)
    assert program.name == "train" and program.chip == "v5e" and program.notes == ("a note",)
    products = [kernel for kernel in program.kernels if kernel.kind == "matmul fusion"]
    assert products and any("dot_general" in kernel.steps for kernel in products)
    assert any("loss = relu(x @ w1) @ w2" in kernel.source for kernel in program.kernels)
    assert program.before is not None and program.before.hbm_bytes > program.counts.hbm_bytes


def test_edges_follow_values_from_arguments_to_results():
    program = small("chain", "v5e:2x2")
    names = {launch.name for launch in (*program.kernels, *program.dmas)} | {""}
    assert {edge.source for edge in program.edges} | {edge.target for edge in program.edges} <= names
    assert {edge.label for edge in program.edges if not edge.source} >= {"x", "w", "b"}
    ends = [edge for edge in program.edges if not edge.target]
    assert [(edge.shape, edge.bytes) for edge in ends] == [("bf16[256,512]", 256 * 512 * 2)]


def test_bf16_shapes_are_counted_in_their_own_width():
    counts = counts_of(decode(corpus.build("cpu", lambda x: x + x, s(10, 10, dtype=B)).before))
    assert counts.hbm_bytes == 3 * 200


@pytest.mark.parametrize("opcode", ["each", "inside", "sums", "of", "no-such-operation"])
def test_an_operation_that_nobody_knows_is_unknown(opcode):
    """Whatever it is called, also like a part of the counter."""
    item = Instruction(1, "a", opcode, Shape("f32", (8,)))
    assert Counter(None).of(None, item).unknown == (f"FLOPs of {opcode}",)  # pyright: ignore[reportArgumentType]
