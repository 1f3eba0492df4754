"""Loops and branches: what runs how often."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tpulab.xla.module import decode
from tpulab.xla.reading import counts_of, program_of

from . import corpus
from .corpus import F, I, s
from .test_counts import flops, read, small, theirs


@pytest.fixture(params=["cpu", "v5e:2x2", "v6e:2x2"])
def target(request):
    corpus.device(request.param)
    return request.param


def test_xla_counts_a_loop_once_and_we_do_not(target):
    """Ten rounds of a 256×256 product; XLA's figure is that of one."""
    built = corpus.small("scan", target)
    program = read(built)
    product = 2 * 256**3
    assert product <= theirs(built)[0] < 2 * product
    assert 10 * product <= flops(program) < 10.1 * product
    assert program.counts.transcendentals == 10 * 256 * 256
    assert program.counts.unknown == ()


def loop(kind):
    def body(c):
        return jnp.sin(c)

    def fori(x):
        return lax.fori_loop(0, 7, lambda i, c: body(c), x)

    def fori_from(x):
        return lax.fori_loop(3, 10, lambda i, c: c * i + 1, x)

    def scan(x):
        return lax.scan(lambda c, _: (body(c), None), x, None, length=7)[0]

    def stacked(x):
        return lax.scan(lambda c, row: (c + row, c * row), x[0], jnp.tile(x[:1], (7, 1)))

    def mapped(x):
        return lax.map(body, jnp.tile(x[:1], (7, 1)))

    def steps(x):
        return lax.while_loop(lambda c: c[0] < 14, lambda c: (c[0] + 2, body(c[1])), (0, x))[1]

    def backward(x):
        return jax.grad(lambda y: scan(y).sum())(x)

    return locals()[kind]


@pytest.mark.parametrize("kind", ["fori", "fori_from", "scan", "stacked", "mapped", "steps", "backward"])
def test_loops_run_as_often_as_they_say(kind, target):
    built = corpus.build(target, loop(kind), s(128, 128, dtype=F))
    for data in (built.before, built.after):
        program = program_of(decode(data), name=kind, target=target)
        assert {7} <= {kernel.times for kernel in program.kernels} <= {1, 7, 8, None} - {None}
        assert not program.counts.unknown


def test_loops_within_loops_multiply():
    def nested(x):
        return lax.fori_loop(0, 3, lambda i, c: lax.fori_loop(0, 5, lambda j, d: jnp.sin(d), c), x)

    built = corpus.build("cpu", nested, s(64, 64, dtype=F))
    assert counts_of(decode(built.before)).transcendentals == 15 * 64 * 64


def test_a_count_that_depends_on_data_is_unknown(target):
    program = small("search", target)
    assert None in {kernel.times for kernel in program.kernels}
    assert any("depends on data" in words for words in program.counts.unknown)
    # the condition sums 128 × 128 numbers, which is work, too
    assert any("reduce" in kernel.opcodes for kernel in program.kernels)

    def given(x, n):
        return lax.fori_loop(0, n, lambda i, c: jnp.sin(c), x)

    program = read(corpus.build(target, given, s(128, 128, dtype=F), s(dtype=I)))
    assert None in {kernel.times for kernel in program.kernels}


def test_branches_are_all_listed_and_said_to_be_uncertain(target):
    program = small("branch", target)
    assert any("branch" in words for words in program.counts.unknown)
    kinds = [kernel.kind for kernel in program.kernels]
    assert any("matmul" in kind or "dot" in kind for kind in kinds)
    assert any("reduce" in kernel.opcodes for kernel in program.kernels)
    assert flops(program) >= 2 * 128**3
