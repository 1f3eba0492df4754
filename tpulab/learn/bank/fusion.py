"""Chapter 06: fusion."""

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import xla
from ...errors import first_line
from ...units import bytes_text
from ..exercise import exercise, wrong
from ..prediction import Prediction
from ..verdict import CannotCheck, NotYet, attempt, expect, expect_close, primitives
from ..words import call_text, describe, ended
from . import Chapter

chapter = Chapter("06_fusion", "Fusion: what the chip launches", reading_minutes=25, needs=("03_jit",))

how_many_kernels = Prediction(
    "fusion.p1",
    "The recording of `with_dropout` has a product, a sum, a maximum, a division and a choice between two numbers. How "
    "many kernels will a v5e launch for it?",
    int,
)
bytes_apart = Prediction(
    "fusion.p2",
    "Now with a barrier after each of the five steps, so that each is a kernel of its own. By what factor do the bytes "
    "to and from HBM grow? (Half as much again either way is right.)",
    float,
    within=1.5,
)
mask_drawn_inside = Prediction(
    "fusion.p3",
    "`with_dropout` was handed a mask. `draws_mask` gets a random key and draws the 134 million truth values itself. "
    "Compared with `with_dropout`, how many bytes does it move to and from HBM?",
    ("more", "about the same", "fewer"),
)
times_read = Prediction(
    "fusion.p4",
    "`softmax` and `normalize` each get one large matrix and give one back. How often is the whole matrix read from HBM, "
    "in all kernels together?",
    {"softmax": int, "normalize": int},
)
one_or_several = Prediction(
    "fusion.p5",
    "Seven functions built on `layer`. Which of them is still one kernel on a v5e, and which are several?",
    dict.fromkeys(
        ("inner jit", "transposed", "used twice", "row sums", "reversed rows", "sorted rows", "two layers"),
        ("one", "several"),
    ),
)
small_shapes = Prediction(
    "fusion.p6",
    "`layer` on small arrays: 2048 × 1024 times 1024 × 4096. Without fusion it is four kernels instead of one. By what "
    "factor do the bytes to and from HBM grow?",
    float,
    within=1.2,
)

_TARGET = "v5e:1x1"


def _bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def _normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _array(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(_normal(seed, *shape))


def _layer(x, w, b):
    return jnp.maximum(x @ w + b, 0)


def _layer_apart(x, w, b):
    apart = lax.optimization_barrier
    return jnp.maximum(apart(apart(x @ w) + b), 0)


def _softmax(x):
    return jax.nn.softmax(x, axis=-1)


def _normalize(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6)


def _sorted_maximum(x):
    return jnp.sort(jnp.maximum(x, 0), axis=-1)[:, -1]


def _compiled(fn: Callable[..., Any], *shapes: Any) -> Any:
    """Compile one of our own functions for a v5e, or take the stored result; without either nothing can be checked."""
    try:
        return xla.compile_for(_TARGET, fn, *shapes)
    except xla.CompilerMissing as error:
        raise CannotCheck(ended(first_line(error))) from error


def _compiled_answer(answer: Callable[..., Any], small: Sequence[Any], large: Sequence[Any], name: str) -> Any:
    """Compile the learner's function on large shapes, once it is the function that gave the numbers on small ones."""
    call = call_text(answer, large, name=name)
    if primitives(answer, *small) != primitives(answer, *large):
        raise NotYet(
            f"{call} records other operations than the same call on small arrays. Write one function for all sizes."
        )

    def compiles(*shapes):
        try:
            return xla.compile_for(_TARGET, answer, *shapes)
        except xla.CompilerMissing as error:
            raise CannotCheck(ended(first_line(error))) from error

    return attempt(compiles, *large, name=name)


@exercise("fusion.1", "What is launched", minutes=5, difficulty=2, core=True)
class launched:
    """Write `launched(instructions)`: which instructions of a compiled program are kernels? You get the instructions of
    its entry in order; each has a `.name` and an `.opcode`. Return the list of the names, in order, without

    - what costs nothing: `parameter`, `constant`, `tuple`, `get-tuple-element` and `bitcast`,
    - what only moves data early, in the background (a DMA): `copy-start`, `copy-done`, `async-start`, `async-done`.

    Everything else is launched, a plain `copy` too. On the entry of our layer this gives one name.
    """

    hints = (
        "Go through the instructions and keep the `.name` of those whose `.opcode` is on neither list.",
        "Compare whole opcodes: `copy` is a kernel, `copy-start` is none.",
        "Put the nine opcodes into a set: `[one.name for one in instructions if one.opcode not in none]`.",
    )
    why = (
        "A compiled program is a list like a jaxpr; a few of its lines are only names for things, the rest is launched."
    )
    notes = (
        "After this nobody should think that a picture of kernels is magic: it is this list. Ask why `bitcast` is free "
        "(same bytes, other shape) and a `copy` is not (other layout, so every byte moves)."
    )

    @staticmethod
    def stub(instructions):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(instructions):
        free = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
        dma = {"copy-start", "copy-done", "async-start", "async-done"}
        return [one.name for one in instructions if one.opcode not in free | dma]

    @wrong("kernels need not be fusions")
    @staticmethod
    def fusions_only(instructions):
        return [one.name for one in instructions if one.opcode == "fusion"]

    @wrong("moves data in the background")
    @staticmethod
    def counts_dmas(instructions):
        free = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
        return [one.name for one in instructions if one.opcode not in free]

    @wrong("A plain `copy` is launched")
    @staticmethod
    def drops_every_copy(instructions):
        free = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
        return [
            one.name for one in instructions if one.opcode not in free and not one.opcode.startswith(("copy", "async"))
        ]

    @wrong("the names")
    @staticmethod
    def opcodes(instructions):
        none = [
            "parameter",
            "constant",
            "tuple",
            "get-tuple-element",
            "bitcast",
            "copy-start",
            "copy-done",
            "async-start",
            "async-done",
        ]
        return [one.opcode for one in instructions if one.opcode not in none]

    @wrong("the names")
    @staticmethod
    def how_many(instructions):
        none = [
            "parameter",
            "constant",
            "tuple",
            "get-tuple-element",
            "bitcast",
            "copy-start",
            "copy-done",
            "async-start",
            "async-done",
        ]
        return sum(one.opcode not in none for one in instructions)

    @wrong("name does not say")
    @staticmethod
    def goes_by_name(instructions):
        none = [
            "parameter",
            "constant",
            "tuple",
            "get-tuple-element",
            "bitcast",
            "copy-start",
            "copy-done",
            "async-start",
            "async-done",
        ]
        return [one.name for one in instructions if one.name.split(".")[0] not in none]

    @staticmethod
    def check(answer):
        for instructions, where in [(_made_up(seed), f"made-up program {seed + 1}") for seed in range(3)]:
            _expect_launched(answer, instructions, _kernel_names(instructions), where)
        for fn, shapes, where in _entries():
            try:
                program = xla.compile_for(_TARGET, fn, *shapes)
            except xla.CompilerMissing:
                continue  # the made-up ones tell right from wrong, too
            entry = program.module.entry
            order = getattr(entry, "order", entry.instructions)
            _expect_launched(answer, order, _kernel_names(order), where)


_NO_KERNELS = frozenset(
    [
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "copy-start",
        "copy-done",
        "async-start",
        "async-done",
    ]
)


def _kernel_names(instructions: Sequence[Any]) -> list[str]:
    return [one.name for one in instructions if one.opcode not in _NO_KERNELS]


def _entries() -> list[tuple[Callable[..., Any], tuple[Any, ...], str]]:
    return [
        (_layer, (_bf16(16384, 4096), _bf16(4096, 8192), _bf16(8192)), "the layer compiled for a v5e"),
        (_normalize, (_bf16(32768, 4096),), "`normalize` compiled for a v5e"),
        (_sorted_maximum, (_bf16(16384, 512),), "a sort compiled for a v5e"),
    ]


def _made_up(seed: int) -> list[SimpleNamespace]:
    """Give instructions under the names that compilers use, some of them misleading."""
    generator = np.random.default_rng(seed)
    launched = ["fusion", "copy", "convolution", "reduce", "sort", "custom-call", "broadcast", "all-reduce", "while"]
    launched += ["bitcast-convert", "all-reduce-start"]  # on neither list, though parts of their names are
    opcodes = [
        *launched,
        *sorted(_NO_KERNELS),
        *generator.choice(launched, 4),
        *generator.choice(sorted(_NO_KERNELS), 5),
    ]
    names = {
        "fusion": "copy_bitcast_fusion",
        "copy": "constant",
        "reduce": "tuple.reduce",
        "copy-start": "fusion.start",
    }
    return [
        SimpleNamespace(name=f"{names.get(opcode, opcode)}.{number}", opcode=str(opcode))
        for number, opcode in enumerate(generator.permutation(opcodes).tolist())
    ]


def _expect_launched(answer: Any, instructions: Sequence[Any], expected: list[str], where: str) -> None:
    got = attempt(answer, tuple(instructions), name="launched")
    call = f"`launched(instructions)` on {where}"
    expect(
        isinstance(got, (list, tuple)) and all(isinstance(one, str) for one in got),
        f"{call} gave {describe(got)}; expected the names of {len(expected)} kernels, in a list.",
    )
    if list(got) == expected:
        return
    opcode_of = {one.name: one.opcode for one in instructions}
    if extra := [name for name in got if name not in expected]:
        opcode = opcode_of.get(extra[0], "")
        cause = (
            f"the names were wanted, and `{extra[0]}` is none of them."
            if not opcode
            else f"`{extra[0]}` is a `{opcode}`, which moves data in the background and is no kernel. A name does not say what it is."
            if opcode.endswith(("-start", "-done"))
            else f"`{extra[0]}` is a `{opcode}`, which costs nothing. A name does not say what it is."
        )
        raise NotYet(f"{call} has {len(extra)} too many: {cause}")
    if missing := [name for name in expected if name not in got]:
        opcode = opcode_of[missing[0]]
        cause = (
            "A plain `copy` is launched like any other kernel."
            if opcode == "copy"
            else "A name does not say what it is; look at its opcode."
            if missing[0].split(".")[0] in _NO_KERNELS
            else "What is on neither list is launched; kernels need not be fusions."
        )
        raise NotYet(f"{call} lacks {len(missing)}, first `{missing[0]}`, a `{opcode}`. {cause}")
    raise NotYet(f"{call} gave the right names in another order, or twice; expected the order of `instructions`.")


@exercise("fusion.2", "Bytes, apart and fused", minutes=5, difficulty=2, core=True)
class traffic:
    """Write `traffic(m, k, n)` for the layer `relu(x @ w + b)` in bfloat16, 2 bytes a number, where `x` is (m, k), `w`
    is (k, n) and `b` is (n,). Return a pair of numbers, bytes to and from HBM: `apart`, when product, sum and maximum
    are three kernels, and `fused`, when they are one. The arrays are too large to stay on the chip; within 10 % of what
    the compiler moves is right.
    """

    hints = (
        "Each kernel reads every array that it takes and writes every array that it makes.",
        "Apart: the result of the product has m · n numbers; who writes it, and who reads it again?",
        "Apart, arrays of m · n numbers cross five times: written, read, written, read, written. Fused, once.",
    )
    why = "Fusing leaves the arguments and the result; all that was written only to be read again is gone."
    notes = "Let them draw it first: three boxes, arrows in and out. Who forgets the reads gets three instead of five."

    @staticmethod
    def stub(m, k, n):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(m, k, n):
        arguments = m * k + k * n + n
        apart = 2 * (arguments + 5 * m * n)
        fused = 2 * (arguments + m * n)
        return apart, fused

    @wrong("read again")
    @staticmethod
    def counts_writes_only(m, k, n):
        arguments = m * k + k * n + n
        return 2 * (arguments + 3 * m * n), 2 * (arguments + m * n)

    @wrong("2 bytes")
    @staticmethod
    def counts_numbers(m, k, n):
        return m * k + k * n + n + 5 * m * n, m * k + k * n + n + m * n

    @wrong("first `apart`")
    @staticmethod
    def swapped(m, k, n):
        arguments = m * k + k * n + n
        return 2 * (arguments + m * n), 2 * (arguments + 5 * m * n)

    @wrong("result")
    @staticmethod
    def forgets_the_result(m, k, n):
        arguments = m * k + k * n + n
        return 2 * (arguments + 4 * m * n), 2 * arguments

    @wrong("arguments")
    @staticmethod
    def forgets_the_arguments(m, k, n):
        return 2 * 5 * m * n, 2 * m * n

    @staticmethod
    def check(answer):
        for m, k, n in ((16384, 4096, 8192), (65536, 1024, 2048), (12288, 8192, 6144)):
            call = f"`traffic({m}, {k}, {n})`"
            got = attempt(answer, m, k, n, name="traffic")
            shapes = _bf16(m, k), _bf16(k, n), _bf16(n)
            expected = tuple(_compiled(fn, *shapes).hbm_bytes for fn in (_layer_apart, _layer))
            shown = f"({bytes_text(expected[0])}, {bytes_text(expected[1])}), as compiled for a v5e"
            expect(
                isinstance(got, (tuple, list, np.ndarray)) and len(got) == 2,
                f"{call} gave {describe(got)}; expected a pair, {shown}.",
            )
            pair = tuple(_number(one, call, shown) for one in got)
            if all(abs(mine - theirs) <= 0.1 * theirs for mine, theirs in zip(pair, expected, strict=True)):
                continue
            words = f"({', '.join(map(bytes_text, pair))})"
            raise NotYet(f"{call} gave {words}; expected {shown}. {_traffic_cause(pair, expected, m, k, n)}")


def _number(value: Any, call: str, wanted: str) -> float:
    try:
        array = np.asarray(value, np.float64)
    except Exception:
        raise NotYet(f"{call} gave {describe(value)} in it; expected two numbers, {wanted}.") from None
    if array.shape != () or isinstance(value, (bool, np.bool_, str)) or not np.isfinite(array):
        raise NotYet(f"{call} gave {describe(value)} in it; expected two numbers, {wanted}.")
    return float(array)


def _near(pair: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(one - two) <= 0.01 * abs(two) for one, two in zip(pair, other, strict=True))


def _traffic_cause(pair: Sequence[float], expected: Sequence[float], m: int, k: int, n: int) -> str:
    numbers, arguments, out = (expected[0] / 2, expected[1] / 2), 2 * (m * k + k * n + n), 2 * m * n
    if _near(pair, numbers):
        return "You counted numbers; each takes 2 bytes."
    if _near(pair, expected[::-1]):
        return "The two are swapped: first `apart`, then `fused`."
    if abs(pair[1] - arguments) < 0.01 * arguments:
        return "The last kernel writes the result to HBM, also when there is only one."
    if _near(pair, (5 * out, out)):
        return "The arguments are read, too: `x`, `w` and `b`."
    if pair[0] < expected[0] and abs(pair[1] - expected[1]) <= 0.1 * expected[1]:
        return "What one kernel writes to HBM is read again by the next."
    return "Draw the three kernels with an arrow for each array that goes in or out, and add up the arrows."


@exercise("fusion.3", "Find what blocks it", minutes=5, difficulty=2, core=True)
class largest:
    """This function gives the largest number in each row of the layer's output:

    `jnp.sort(jnp.maximum(x @ w + b, 0), axis=1)[:, -1]`

    For `x` of 16384 × 4096 and `w` of 4096 × 8192 a v5e launches six kernels for it, which move 4 GB; arguments and
    result have 0.2 GB. Write `largest(x, w, b)`, which gives the same numbers, shape (rows,), so that **only the
    arguments and the result cross HBM**.
    """

    hints = (
        "Which of its operations cannot be done number by number, nor row by row as the numbers come out of the product?",
        "Sorting all of a row to look at one number of it is more than was asked.",
        "A reduction over a row can be part of the product's kernel; `row_sums` was one.",
    )
    why = "A sort needs its whole input before it gives out anything; a maximum takes the numbers as they come."
    notes = (
        "4.0 GB become 0.2 GB (compiled, 16384 × 4096 × 8192). The general lesson: first ask whether the operation that "
        "blocks is needed at all. `jnp.median`, `argsort`, `lax.top_k`, `cumsum` are the usual suspects."
    )

    @staticmethod
    def stub(x, w, b):
        # one or two lines
        raise NotImplementedError

    @staticmethod
    def solution(x, w, b):
        return jnp.maximum(x @ w + b, 0).max(axis=1)

    @wrong("still sorts")
    @staticmethod
    def still_sorts(x, w, b):
        return jnp.sort(jnp.maximum(x @ w + b, 0), axis=1)[:, -1]

    @wrong("still sorts")
    @staticmethod
    def sorts_before_the_relu(x, w, b):
        return jnp.maximum(jnp.sort(x @ w + b, axis=1)[:, -1], 0)

    @wrong("`top_k`")
    @staticmethod
    def takes_the_first_of_top_k(x, w, b):
        return lax.top_k(jnp.maximum(x @ w + b, 0), 1)[0][:, 0]

    @wrong("each row")
    @staticmethod
    def of_each_column(x, w, b):
        return jnp.maximum(x @ w + b, 0).max(axis=0)

    @wrong("each row")
    @staticmethod
    def of_everything(x, w, b):
        return jnp.maximum(x @ w + b, 0).max()

    @wrong("negative")
    @staticmethod
    def forgets_the_relu(x, w, b):
        return (x @ w + b).max(axis=1)

    @wrong("shape (rows,)")
    @staticmethod
    def keeps_the_axis(x, w, b):
        return jnp.maximum(x @ w + b, 0).max(axis=1, keepdims=True)

    @wrong("before the bias")
    @staticmethod
    def adds_the_bias_late(x, w, b):
        return jnp.maximum((x @ w).max(axis=1) + b.max(), 0)

    @staticmethod
    def check(answer):
        for seed, (m, k, n) in enumerate(((5, 3, 4), (6, 7, 6), (1, 2, 9))):
            x, w, b = (_array(seed + at, *shape) for at, shape in ((0, (m, k)), (10, (k, n)), (20, (n,))))
            if seed == 1:
                b = b - 20  # relu cuts everything off
            h = np.asarray(x, np.float64) @ np.asarray(w, np.float64) + np.asarray(b)
            got = attempt(answer, x, w, b, name="largest")
            expected = np.clip(h, 0, None).max(1)
            mistakes = [
                (h.max(1), "Where a whole row is negative, the layer gives zeros."),
                (np.clip(h, 0, None).max(0), "The largest of each row was wanted, not of each column."),
                (np.clip(h, 0, None).max(), "The largest of each row was wanted, not of everything."),
                (expected[:, None], "The right numbers, but expected shape (rows,)."),
                (
                    np.clip((h - np.asarray(b)).max(1) + float(b.max()), 0, None),
                    "You looked for the largest before the bias was added.",
                ),
            ]
            expect_close(got, expected, call=call_text(answer, (x, w, b), name="largest"), mistakes=mistakes)
            traced = attempt(jax.jit(answer), x, w, b, name="jax.jit(largest)")
            expect_close(traced, expected, call="`jax.jit(largest)` on the same arrays")
        halves = [one.astype(jnp.bfloat16) for one in (_array(30, 6, 3), _array(31, 3, 5), _array(32, 5))]
        wide = [np.asarray(one, np.float64) for one in halves]
        got = np.asarray(attempt(answer, *halves, name="largest"), np.float64)
        call = call_text(answer, halves, name="largest")
        expect_close(got, np.clip(wide[0] @ wide[1] + wide[2], 0, None).max(1), call=call, rtol=0.05, atol=0.05)
        small = _bf16(5, 3), _bf16(3, 4), _bf16(4)
        _expect_no_wait(primitives(answer, *small))
        if xla.compiler_problem():
            return  # the recording holds only what fuses; there is no compiler to say so itself
        large = _bf16(16384, 4096), _bf16(4096, 8192), _bf16(8192)
        program = _compiled_answer(answer, small, large, "largest")
        _expect_bytes(program, 2 * (16384 * 4096 + 4096 * 8192 + 8192 + 16384), "`largest`")


_FUSES = frozenset(
    [
        "dot_general",
        "add",
        "sub",
        "mul",
        "max",
        "min",
        "neg",
        "reduce",
        "reduce_max",
        "reduce_min",
        "reduce_sum",
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "convert_element_type",
        "select_n",
        "gt",
        "ge",
        "lt",
        "le",
        "eq",
        "ne",
        "transpose",
        "slice",
        "jit",
        "pjit",
        "closed_call",
        "custom_jvp_call",
        "copy",
        "stop_gradient",
        "clamp",
    ]
)


def _expect_no_wait(names: Sequence[str]) -> None:
    for name in names:
        if "sort" in name:
            raise NotYet(
                f"`largest` still sorts: its recording has `{name}`. Is the order of all the others asked for?"
            )
        if "top_k" in name or "approx" in name:
            raise NotYet("`largest` records `top_k`, a kernel of its own that waits for the whole row. Reduce instead.")
        if name.startswith(("cum", "arg")) or name not in _FUSES:
            raise NotYet(
                f"`largest` records `{name}`. A product, elementwise operations and one reduction are enough, and fuse."
            )


def _expect_bytes(program: Any, least: int, what: str, cause: str = "") -> None:
    """Demand that a program moves what it must and no more than a tenth on top."""
    moved = f"{what}, compiled for a v5e, moves {bytes_text(program.hbm_bytes)} in {len(program.kernels)} kernels"
    expect(
        program.hbm_bytes >= 0.7 * least,
        f"{moved}; its arguments and its result alone are {bytes_text(least)}. Use all of them.",
    )
    if program.hbm_bytes > 1.1 * least:
        widest = max(program.kernels, key=lambda kernel: kernel.hbm_bytes * (kernel.times or 1))
        raise NotYet(
            f"{moved}; at most {bytes_text(1.1 * least)} were wanted. The kernel that moves most is "
            f"`{widest.name}` ({widest.kind}). {cause}".rstrip()
        )


@exercise("fusion.4", "Make it one kernel", minutes=8, difficulty=3, needs_compiler=True)
class add_by_group:
    """Each row of `a`, shape (rows, n), belongs to one of 16 groups, and each group has a row of its own in `table`,
    shape (16, n). `group`, shape (rows,), has whole numbers from 0 to 15. This adds each row's own and cuts off below
    zero: `jnp.maximum(a + table[group], 0)`. On a v5e the lookup is a kernel apart: the rows that it fetched go to HBM
    and come back.

    Write `add_by_group(a, table, group)`, with the same result, in the dtype of `a`, so that **one kernel** reads `a` and
    writes the result, and nothing as large as `a` is written or read besides.
    """

    hints = (
        "What breaks the fusion is the lookup `table[group]`. A cell above gave the same rows in another way.",
        "`jax.nn.one_hot(group, 16)` has a 1 where the group is; a product with `table` picks the row.",
        "`jnp.maximum(a + jax.nn.one_hot(group, 16, dtype=a.dtype) @ table, 0)`",
    )
    why = (
        "As a product with a matrix of zeros and ones the lookup runs on the matrix unit, and the sum and the maximum "
        "join its kernel. Sixteen multiply-adds a number are cheaper than two trips to HBM."
    )
    notes = (
        "Compiled for 32768 × 8192: 2.1 GB in 3 kernels become 1.1 GB in 1. Discuss where it ends: with 100,000 groups "
        "the product costs more than the trips; a table of words is looked up, not multiplied."
    )

    @staticmethod
    def stub(a, table, group):
        # one or two lines
        raise NotImplementedError

    @staticmethod
    def solution(a, table, group):
        rows = jax.nn.one_hot(group, 16, dtype=a.dtype) @ table
        return jnp.maximum(a + rows, 0)

    @wrong("kernel of its own")
    @staticmethod
    def still_looks_up(a, table, group):
        return jnp.maximum(a + table[group], 0)

    @wrong("kernel of its own")
    @staticmethod
    def takes(a, table, group):
        return jnp.maximum(a + jnp.take(table, group, axis=0), 0)

    @wrong("kernel of its own")
    @staticmethod
    def maps_over_rows(a, table, group):
        return jax.vmap(lambda row, one: jnp.maximum(row + table[one], 0))(a, group)

    @wrong("dtype of `a`")
    @staticmethod
    def widens(a, table, group):
        return jnp.maximum(a + jax.nn.one_hot(group, 16) @ table, 0)

    @wrong("cut off below zero")
    @staticmethod
    def forgets_the_maximum(a, table, group):
        return a + jax.nn.one_hot(group, 16, dtype=a.dtype) @ table

    @wrong("each row's own")
    @staticmethod
    def adds_all_rows(a, table, group):
        return jnp.maximum(a + table.sum(0), 0)

    @staticmethod
    def check(answer):
        for seed, (rows, n) in enumerate(((7, 5), (20, 3), (33, 8))):
            a, table = _array(seed, rows, n), _array(seed + 10, 16, n)
            group = jnp.asarray(np.random.default_rng(seed + 20).integers(0, 16, rows), jnp.int32)
            summed = np.asarray(a) + np.stack([np.asarray(table)[one] for one in group.tolist()])
            call = call_text(answer, (a, table, group), name="add_by_group")
            mistakes = [
                (summed, "What is below zero is cut off below zero: `jnp.maximum(…, 0)`."),
                (
                    np.clip(np.asarray(a + table.sum(0)), 0, None),
                    "You added all rows of the table; each row's own was wanted.",
                ),
            ]
            for called, words in ((answer, call), (jax.jit(answer), f"jitted, {call}")):
                got = attempt(called, a, table, group, name="add_by_group")
                expect_close(got, np.clip(summed, 0, None), call=words, mistakes=mistakes)
        a, table = _array(40, 18, 4).astype(jnp.bfloat16), _array(41, 16, 4).astype(jnp.bfloat16)
        group = jnp.asarray(np.random.default_rng(42).permutation(18) % 16, jnp.int32)
        rows_of = np.stack([np.asarray(table, np.float64)[one] for one in group.tolist()])
        expected = np.clip(np.asarray(a, np.float64) + rows_of, 0, None)
        got = np.asarray(attempt(answer, a, table, group, name="add_by_group"), np.float64)
        call = call_text(answer, (a, table, group), name="add_by_group")
        expect_close(got, expected, call=call, rtol=0.02, atol=0.02)
        small = _bf16(24, 8), _bf16(16, 8), jax.ShapeDtypeStruct((24,), jnp.int32)
        dtype = attempt(lambda *shapes: jax.eval_shape(answer, *shapes), *small, name="add_by_group").dtype
        expect(
            dtype == jnp.bfloat16,
            f"For `a` and `table` in bfloat16 the result came in {dtype}; expected the dtype of `a`. "
            "`one_hot` gives float32 unless told otherwise, and float32 wins.",
        )
        for rows, n in ((32768, 8192), (65536, 2048)):
            large = _bf16(rows, n), _bf16(16, n), jax.ShapeDtypeStruct((rows,), jnp.int32)
            program = _compiled_answer(answer, small, large, "add_by_group")
            least = 2 * (2 * rows * n + 16 * n) + 4 * rows
            cause = (
                "A lookup is a kernel of its own: what it fetched goes to HBM and comes back."
                if any("gather" in code for kernel in program.kernels for code in kernel.opcodes)
                else "Something as large as `a` is written and read besides."
            )
            _expect_bytes(program, least, "`add_by_group`", cause)
            big = [kernel for kernel in program.kernels if kernel.hbm_bytes * (kernel.times or 1) > least / 20]
            expect(
                len(big) == 1,
                f"`add_by_group`, compiled for a v5e, has {len(big)} kernels that move much; one was wanted.",
            )


@exercise("fusion.5", "Name the blocker", minutes=7, difficulty=3)
class blocker:
    """Write `blocker(program)`: which kernel reads the largest value that another one left in HBM? `program.edges` lists what flows:
    each edge has a `.source` (the kernel that wrote it, `""` for an argument), a `.target` (the kernel that reads it,
    `""` for a result), `.bytes`, and a `.space`, `"HBM"` or other.

    Among the values that **one kernel wrote to HBM and another reads**, take the largest, and return the `.target` that
    reads it; `None` where there is no such value.
    """

    hints = (
        "Keep the edges in HBM that have both a source and a target.",
        "Of these, `max(…, key=lambda edge: edge.bytes)`; mind that there may be none.",
        "`max` takes `default=None`; then return its `.target`, or `None`.",
    )
    why = "A value that is neither argument nor result crosses HBM only because two kernels did not become one."
    notes = "Ask what they would do with the name: look at that kernel's opcode and source line, and ask whether it must be."

    @staticmethod
    def stub(program):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(program):
        between = [edge for edge in program.edges if edge.source and edge.target and edge.space == "HBM"]
        return max(between, key=lambda edge: edge.bytes).target if between else None

    @wrong("argument")
    @staticmethod
    def counts_arguments(program):
        found = [edge for edge in program.edges if edge.target and edge.space == "HBM"]
        return max(found, key=lambda edge: edge.bytes).target if found else None

    @wrong("never leaves the chip")
    @staticmethod
    def forgets_the_space(program):
        found = [edge for edge in program.edges if edge.source and edge.target]
        return max(found, key=lambda edge: edge.bytes).target if found else None

    @wrong("that reads it")
    @staticmethod
    def names_the_writer(program):
        found = [edge for edge in program.edges if edge.source and edge.target and edge.space == "HBM"]
        return max(found, key=lambda edge: edge.bytes).source if found else None

    @wrong("result")
    @staticmethod
    def counts_results(program):
        found = [edge for edge in program.edges if edge.source and edge.space == "HBM"]
        return max(found, key=lambda edge: edge.bytes).target if found else None

    @wrong("largest")
    @staticmethod
    def takes_the_first(program):
        found = [edge for edge in program.edges if edge.source and edge.target and edge.space == "HBM"]
        return found[0].target if found else None

    @wrong("`None`")
    @staticmethod
    def stumbles_over_none(program):
        found = [edge for edge in program.edges if edge.source and edge.target and edge.space == "HBM"]
        return max(found, key=lambda edge: edge.bytes, default=SimpleNamespace(target="")).target

    @staticmethod
    def check(answer):
        for number, edges in enumerate(_EDGES):
            got = attempt(answer, SimpleNamespace(edges=edges), name="blocker")
            _expect_blocker(got, edges, f"made-up program {number + 1}")
        layer = _bf16(16384, 4096), _bf16(4096, 8192), _bf16(8192)
        for fn, shapes, where in (
            (_layer_apart, layer, "the layer in three kernels, compiled for a v5e"),
            (_layer, layer, "the layer compiled for a v5e"),
            (_normalize, (_bf16(32768, 4096),), "`normalize` compiled for a v5e"),
        ):
            try:
                program = xla.compile_for(_TARGET, fn, *shapes)
            except xla.CompilerMissing:
                continue  # the made-up ones tell right from wrong, too
            _expect_blocker(attempt(answer, program, name="blocker"), program.edges, where)


def _edge(source: str, target: str, mb: float, space: str = "HBM") -> SimpleNamespace:
    size = int(mb * 1e6)
    return SimpleNamespace(source=source, target=target, bytes=size, space=space, label="", shape=f"bf16[{size // 2}]")


_EDGES = (
    (
        _edge("", "copy.1", 134),
        _edge("fusion", "slice.4", 50),
        _edge("copy.1", "sort.2", 268),
        _edge("sort.2", "reduce.3", 805, "VMEM"),
        _edge("reduce.3", "", 900),
    ),
    (_edge("", "fusion", 134), _edge("", "fusion", 67), _edge("fusion", "", 268)),
    (_edge("", "a", 10), _edge("a", "b", 4, "VMEM"), _edge("b", "", 10)),
    (_edge("", "a", 10), _edge("a", "b", 40, "space 3"), _edge("a", "c", 4), _edge("c", "", 10)),
    # two middling values into one kernel, the largest alone into another
    (_edge("a", "both", 30), _edge("b", "both", 30), _edge("c", "one", 40), _edge("both", "", 99)),
    (
        _edge("", "broadcast.7", 1),
        _edge("broadcast.7", "add.1", 12.5),
        _edge("", "dot", 900),
        _edge("dot", "add.1", 25),
        _edge("add.1", "max", 24.9),
        _edge("max", "", 25),
    ),
)


def _expect_blocker(got: Any, edges: Sequence[Any], where: str) -> None:
    between = [edge for edge in edges if edge.source and edge.target and edge.space == "HBM"]
    most = max((edge.bytes for edge in between), default=0)
    right = {edge.target for edge in between if edge.bytes == most} or {None}
    if got in right:
        return
    call, wanted = f"`blocker(program)` on {where}", " or ".join(sorted(repr(one) for one in right))
    cause = "Compare with `program.edges`."
    named = [edge for edge in edges if got and got in (edge.source, edge.target)]
    if right == {None}:
        cause = "No value is written to HBM by one kernel and read by another; that answer is `None`."
        if any(edge.target == got and edge.space != "HBM" for edge in named):
            cause = "What it reads never leaves the chip; such edges have another `.space` than HBM. Expect `None`."
        elif any(edge.target == got and not edge.source for edge in named):
            cause = "It reads an argument, which no kernel wrote; then the answer is `None`."
    elif got == "":
        cause = "An edge without a target is a result: nobody reads it back."
    elif any(edge.source == got and edge.bytes == most and edge in between for edge in named):
        cause = "That kernel wrote the value; name the one that reads it."
    elif any(edge.target == got and edge in between for edge in named):
        cause = "It reads a value from HBM, but not the largest."
    elif any(edge.target == got and not edge.source for edge in named):
        cause = "It reads an argument, which no kernel wrote."
    elif any(edge.target == got and edge.space != "HBM" for edge in named):
        cause = "What it reads never leaves the chip: look at `.space`."
    raise NotYet(f"{call} gave {describe(got)}; expected {wanted}. {cause}")


@exercise("fusion.6", "One pass less", minutes=10, difficulty=4, needs_compiler=True)
class normalize_once:
    """`normalize` reads its matrix three times: for the mean, for the variance, and to write the result. Write
    `normalize_once(x)`, for a matrix `x` in float32 or bfloat16, which gives the same, row by row, in the dtype of `x`:

    (x − mean) · rsqrt(variance + 1e-6)

    and reads it **twice**. The rows' means are no larger than their spread; rounding may differ in the last digits.
    """

    hints = (
        "Mean and variance need two passes because the second waits for the first. What could be summed up at once?",
        "The variance is the mean of the squares minus the square of the mean. Neither sum waits for the other.",
        "Convert to float32 first, so that the difference of the two keeps its digits; convert the result back.",
    )
    why = (
        "Two sums that do not wait for each other are taken in one kernel with two results. The price is digits: where "
        "the mean is much larger than the spread, the difference of two large numbers loses them."
    )
    notes = (
        "8.6 million estimated cycles instead of 12.3, compiled, 32768 × 8192. Ask for an input on which it fails: "
        "1000 + noise. Libraries that care use Welford's way, or shift by the row's first number."
    )

    @staticmethod
    def stub(x):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(x):
        wide = x.astype(jnp.float32)
        mean = wide.mean(-1, keepdims=True)
        square = (wide * wide).mean(-1, keepdims=True)
        return ((wide - mean) * lax.rsqrt(square - mean * mean + 1e-6)).astype(x.dtype)

    @wrong("three times")
    @staticmethod
    def as_before(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6)

    @wrong("three times")
    @staticmethod
    def uses_var(x):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    @wrong("forgot the mean")
    @staticmethod
    def leaves_the_mean_in(x):
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    @wrong("mean of the squares")
    @staticmethod
    def divides_by_the_square(x):
        square = (x * x).mean(-1, keepdims=True)
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(square + 1e-6)

    @wrong("dtype")
    @staticmethod
    def stays_wide(x):
        wide = x.astype(jnp.float32)
        mean, square = wide.mean(-1, keepdims=True), (wide * wide).mean(-1, keepdims=True)
        return (wide - mean) * lax.rsqrt(square - mean * mean + 1e-6)

    @wrong("each row")
    @staticmethod
    def over_everything(x):
        mean, square = x.mean(), (x * x).mean()
        return (x - mean) * lax.rsqrt(square - mean * mean + 1e-6)

    @staticmethod
    def check(answer):
        for seed, (rows, n) in enumerate(((5, 64), (17, 200), (3, 31))):
            generator = np.random.default_rng(seed)
            spread, shift = generator.uniform(0.5, 3, (rows, 1)), generator.uniform(-1, 1, (rows, 1))
            spread[0] = 0  # a row of zeros stays one
            spread[1] = 1e-3  # so small that it matters where the 1e-6 stands
            x = (spread * (generator.normal(size=(rows, n)) + shift)).astype(np.float32)
            _expect_normal(answer, jnp.asarray(x), 1e-3)
            _expect_normal(answer, jnp.asarray(x, jnp.bfloat16), 4e-2)
        for rows, n in ((32768, 8192), (65536, 4096)):
            program = _compiled_answer(answer, (_bf16(8, 128),), (_bf16(rows, n),), "normalize_once")
            size = 2 * rows * n
            read = sum(kernel.bytes_read * (kernel.times or 1) for kernel in program.kernels)
            words = {1: "once", 2: "twice", 3: "three times"}.get(round(read / size), f"{round(read / size)} times")
            cause = f"The matrix is read {words}; twice was wanted. Which sum waits for another one?"
            _expect_bytes(program, 3 * size, "`normalize_once`", cause)


def _expect_normal(answer: Any, x: Any, tolerance: float) -> None:
    wide = np.asarray(x, np.float64)
    mean, square = wide.mean(-1, keepdims=True), (wide * wide).mean(-1, keepdims=True)
    expected = (wide - mean) / np.sqrt(wide.var(-1, keepdims=True) + 1e-6)
    call = call_text(answer, (x,), name="normalize_once")
    mistakes = [
        (wide / np.sqrt(square + 1e-6), "You forgot the mean."),
        ((wide - mean) / np.sqrt(square + 1e-6), "That is the mean of the squares; take off the square of the mean."),
        ((wide - wide.mean()) / np.sqrt(wide.var() + 1e-6), "Mean and variance of each row were wanted."),
    ]
    for called, words in ((answer, call), (jax.jit(answer), f"jitted, {call}")):
        got = attempt(called, x, name="normalize_once")
        expect(
            getattr(got, "dtype", None) == x.dtype,
            f"{words} gave {describe(got)}; expected the dtype of `x`, {x.dtype}.",
        )
        got = np.asarray(got, np.float64)
        cause = "Take off each row's mean and multiply by `rsqrt` of its variance plus 1e-6."
        expect_close(got, expected, call=words, cause=cause, mistakes=mistakes, rtol=tolerance, atol=tolerance)


@exercise("fusion.7", "The bill without a compiler", minutes=8, difficulty=3)
class eager_bytes:
    """Write `eager_bytes(f, *args)`: how many bytes would `f(*args)` move if **each operation of its recording were a
    kernel**, as an eager framework launches them? Each operation reads all its inputs and writes all its outputs. An
    input that occurs twice in an operation is read twice. Single numbers, of shape `()`, count nothing.

    Use the recording of `jax.make_jaxpr`; its operations are all on the top level here. `lambda x: x * x + 1` on
    `jnp.ones(100)`, float32, gives 2,000.
    """

    hints = (
        "`jax.make_jaxpr(f)(*args).eqns` lists the operations; each has `.invars` and `.outvars`.",
        "Each of these has an `.aval` with a `.shape`, a `.size` and a `.dtype`, whose `.itemsize` is bytes a number.",
        "Add `size * dtype.itemsize` over all in- and outputs of all operations, where `shape` is not `()`.",
    )
    why = (
        "A recording knows the shape of everything, so the bill of running it piece by piece can be had before it runs."
    )
    notes = (
        "Compare with `program.before.hbm_bytes`, which does the same for HLO; constants and broadcasts make it differ."
    )

    @staticmethod
    def stub(f, *args):
        # about 6 lines
        raise NotImplementedError

    @staticmethod
    def solution(f, *args):
        total = 0
        for equation in jax.make_jaxpr(f)(*args).eqns:
            for value in (*equation.invars, *equation.outvars):
                if value.aval.shape:
                    total += value.aval.size * value.aval.dtype.itemsize
        return total

    @wrong("written")
    @staticmethod
    def reads_only(f, *args):
        return sum(
            value.aval.size * value.aval.dtype.itemsize
            for equation in jax.make_jaxpr(f)(*args).eqns
            for value in equation.invars
            if value.aval.shape
        )

    @wrong("read")
    @staticmethod
    def writes_only(f, *args):
        return sum(
            value.aval.size * value.aval.dtype.itemsize
            for equation in jax.make_jaxpr(f)(*args).eqns
            for value in equation.outvars
            if value.aval.shape
        )

    @wrong("numbers, not bytes")
    @staticmethod
    def counts_numbers(f, *args):
        return sum(
            value.aval.size
            for equation in jax.make_jaxpr(f)(*args).eqns
            for value in (*equation.invars, *equation.outvars)
            if value.aval.shape
        )

    @wrong("not always 4")
    @staticmethod
    def four_bytes_each(f, *args):
        return 4 * sum(
            value.aval.size
            for equation in jax.make_jaxpr(f)(*args).eqns
            for value in (*equation.invars, *equation.outvars)
            if value.aval.shape
        )

    @wrong("Between")
    @staticmethod
    def as_if_fused(f, *args):
        jaxpr = jax.make_jaxpr(f)(*args).jaxpr
        return sum(
            value.aval.size * value.aval.dtype.itemsize for value in (*jaxpr.invars, *jaxpr.outvars) if value.aval.shape
        )

    @wrong("Single numbers")
    @staticmethod
    def counts_scalars(f, *args):
        return sum(
            value.aval.size * value.aval.dtype.itemsize
            for equation in jax.make_jaxpr(f)(*args).eqns
            for value in (*equation.invars, *equation.outvars)
        )

    @staticmethod
    def check(answer):
        for f, args, reads, writes, scalars, edge in _bills():
            got = attempt(answer, f, *args, name="eager_bytes")
            expected = reads + writes
            call = call_text(answer, ("f", *args), name="eager_bytes").replace("'f'", "f")
            if isinstance(got, (bool, str)) or np.shape(got) != ():
                raise NotYet(f"{call} gave {describe(got)}; expected one number, {expected:,}.")
            expect_close(
                got,
                expected,
                call=call,
                cause="Add up all inputs and outputs of each operation, in bytes.",
                mistakes=[
                    (edge, "Between its operations, too, everything is written and read again."),
                    (reads, "What is read is there; what an operation gives is written, too."),
                    (writes, "What is written is there; what an operation takes is read, too."),
                    (expected / 4, "You counted numbers, not bytes."),
                    (2 * expected, "A number takes `dtype.itemsize` bytes, which are not always 4."),
                    (expected + scalars, "Single numbers, of shape `()`, were not to count."),
                ]
                if reads != writes
                else [(edge, "Between its operations, too, everything is written and read again.")],
                rtol=1e-9,
                atol=0,
            )


def _bills() -> list[tuple[Callable[..., Any], tuple[Any, ...], int, int, int, int]]:
    """Give trials: f, arguments, bytes read, written, those of single numbers, and what in- and outputs alone have."""
    f32, half = np.float32, np.float16
    return [
        # x * x reads 2 and writes 1; + 1 reads 1 and writes 1
        (lambda x: lax.add(lax.mul(x, x), f32(1)), (_normal(0, 30),), 3 * 120, 2 * 120, 4, 240),
        # the product reads 12 + 20 numbers and writes 15; max reads and writes 15
        (lambda x, w: lax.max(lax.dot(x, w), f32(0)), (_normal(1, 3, 4), _normal(2, 4, 5)), 188, 120, 4, 188),
        # float16 throughout: sin 2 × 14, add 3 × 14
        (lambda x: lax.add(lax.sin(x), x), (_normal(3, 7).astype(half),), 42, 28, 0, 28),
        # a change of dtype: 40 bytes in, 20 out; then 20 and 20
        (lambda x: lax.neg(lax.convert_element_type(x, half)), (_normal(4, 10),), 60, 40, 0, 60),
        # the last result is not used, and is made all the same
        (lambda x, y: (lax.mul(x, y), lax.exp(y))[0], (_normal(5, 6, 2), _normal(6, 6, 2)), 144, 96, 0, 144),
        (lambda x: x, (_normal(7, 5),), 0, 0, 0, 40),
        # an array of one number is an array
        (lambda x: lax.mul(x, x), (_normal(8, 1),), 8, 4, 0, 8),
        # an array that the function brings along is read like any other
        (lambda x: lax.add(x, _normal(9, 9)), (_normal(10, 9),), 72, 36, 0, 72),
    ]


@exercise("fusion.8", "Which pass did it", minutes=8, difficulty=3)
class fusing_passes:
    """The compiler's passes run one after another. `stages` lists the program after each: `.after` is the name of the
    pass that ran, `.fusions` the number of fusions in the program then. The first stage is the program before any pass;
    its `.after` is empty.

    Write `fusing_passes(stages)`: a list of pairs (name, how many fusions more), in order, of those passes after which
    there were more fusions than before.
    """

    hints = (
        "Look at each stage together with the one before it.",
        "`itertools.pairwise(stages)` gives these pairs; so does `zip(stages, stages[1:])`.",
        "Keep `(now.after, now.fusions - before.fusions)` where the difference is positive.",
    )
    why = "What a pass did is the difference between the program after it and the program before it."
    notes = (
        "On the default versions one pass, `tpu_fusion`, makes nearly all. Names of passes are not stable; ideas are."
    )

    @staticmethod
    def stub(stages):
        # about 4 lines
        raise NotImplementedError

    @staticmethod
    def solution(stages):
        made = []
        for before, now in itertools.pairwise(stages):
            if now.fusions > before.fusions:
                made.append((now.after, now.fusions - before.fusions))
        return made

    @wrong("in all")
    @staticmethod
    def all_with_fusions(stages):
        return [(stage.after, stage.fusions) for stage in stages if stage.fusions]

    @wrong("before it")
    @staticmethod
    def names_the_one_before(stages):
        return [
            (before.after, now.fusions - before.fusions)
            for before, now in itertools.pairwise(stages)
            if now.fusions > before.fusions
        ]

    @wrong("fewer")
    @staticmethod
    def any_change(stages):
        return [
            (now.after, now.fusions - before.fusions)
            for before, now in itertools.pairwise(stages)
            if now.fusions != before.fusions
        ]

    @wrong("only the first")
    @staticmethod
    def first_alone(stages):
        for before, now in itertools.pairwise(stages):
            if now.fusions > before.fusions:
                return [(now.after, now.fusions - before.fusions)]
        return []

    @wrong("pairs")
    @staticmethod
    def names_alone(stages):
        return [now.after for before, now in itertools.pairwise(stages) if now.fusions > before.fusions]

    @staticmethod
    def check(answer):
        for counts in ((0, 0, 0, 1, 1, 1), (0, 0, 3, 2, 2, 6, 6), (0, 0, 0), (0, 2, 5, 4, 5, 5, 4), (1, 1, 2)):
            names = ("", "simplify", "tpu_fusion", "layout", "simplify", "tpu_fusion", "copies")  # some run twice
            stages = tuple(
                SimpleNamespace(after=name, fusions=count) for name, count in zip(names, counts, strict=False)
            )
            _expect_passes(attempt(answer, stages, name="fusing_passes"), stages)


def _expect_passes(got: Any, stages: Sequence[Any]) -> None:
    steps = [(stages[i - 1], stages[i]) for i in range(1, len(stages))]
    expected = [(now.after, now.fusions - before.fusions) for before, now in steps if now.fusions > before.fusions]
    call = f"`fusing_passes(stages)` with fusions {[stage.fusions for stage in stages]}"
    expect(
        isinstance(got, (list, tuple)) and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in got),
        f"{call} gave {describe(got)}; expected a list of pairs (name, how many more), {expected!r}.",
    )
    pairs = [tuple(one) for one in got]
    if pairs == expected:
        return
    cause = "Compare each stage with the one before it."
    if pairs == [(stage.after, stage.fusions) for stage in stages if stage.fusions]:
        cause = "Those are the fusions in all; how many more than before was asked."
    elif pairs == [
        (before.after, now.fusions - before.fusions) for before, now in steps if now.fusions > before.fusions
    ]:
        cause = "You named the stage before it; a stage shows the program after its own pass."
    elif any(isinstance(more, (int, float)) and more <= 0 for _, more in pairs):
        cause = "A pass that left fewer or as many does not belong in it."
    elif pairs == expected[:1]:
        cause = "That is only the first; all of them were wanted."
    raise NotYet(f"{call} gave {describe(pairs)}; expected {expected!r}. {cause}")


@exercise("fusion.9", "A loop that crosses HBM", minutes=8, difficulty=3, needs_compiler=True)
class rounds:
    """`smooth` does one elementwise step several times, with a loop that is recorded once:
    `lax.fori_loop(0, times, lambda i, a: jnp.tanh(1.5 * a), a)`. On a TPU each round of the loop is a launch of its own:
    `a` comes from HBM and goes back, round after round.

    Write `rounds(a, times)`, with the same result for a Python number `times` of 1 to 8, so that `a` is read **once** and
    the result written once, whatever `times` is.
    """

    hints = (
        "A kernel cannot reach over the rounds of a loop that the program runs. Which loop leaves no trace in it?",
        "Chapter 03 warned that a Python loop is unrolled into the recording. Here that is what you want.",
        "`for _ in range(times): a = jnp.tanh(1.5 * a)`; or tell `lax.fori_loop` to `unroll=True`.",
    )
    why = "Unrolled, the rounds are elementwise operations one after another, and these fuse. A loop's body does not."
    notes = (
        "Not a law: unrolling hundreds of rounds costs compile time and code size. Where a body is a matmul, fusing over "
        "rounds is impossible anyway, so keep the loop."
    )

    @staticmethod
    def stub(a, times):
        # two or three lines
        raise NotImplementedError

    @staticmethod
    def solution(a, times):
        for _ in range(times):
            a = jnp.tanh(1.5 * a)
        return a

    @wrong("anew each round")
    @staticmethod
    def still_a_loop(a, times):
        return lax.fori_loop(0, times, lambda i, a: jnp.tanh(1.5 * a), a)

    @wrong("anew each round")
    @staticmethod
    def scans(a, times):
        return lax.scan(lambda a, _: (jnp.tanh(1.5 * a), None), a, None, length=times)[0]

    @wrong("one round")
    @staticmethod
    def once(a, times):
        return jnp.tanh(1.5 * a)

    @wrong("power")
    @staticmethod
    def multiplies_up(a, times):
        return jnp.tanh(1.5**times * a)

    @wrong("too many")
    @staticmethod
    def one_too_many(a, times):
        for _ in range(times + 1):
            a = jnp.tanh(1.5 * a)
        return a

    @staticmethod
    def check(answer):
        for seed, times in enumerate((1, 3, 4, 7)):
            a = 2 * _array(seed, 4 + seed, 3)
            results = [np.asarray(a, np.float64)]
            for _ in range(times + 1):
                results.append(np.tanh(1.5 * results[-1]))
            call = call_text(answer, (a, times), name="rounds")
            mistakes = [
                (results[1], "That is one round."),
                (results[times + 1], "That is one round too many."),
                (np.tanh(1.5**times * results[0]), "A power of 1.5 is not it: `tanh` stands between the rounds."),
            ]
            expect_close(attempt(answer, a, times, name="rounds"), results[times], call=call, mistakes=mistakes)
            jitted = jax.jit(lambda a, times=times: answer(a, times))
            expect_close(attempt(jitted, a, name="rounds"), results[times], call=f"jitted, {call}")
        half = _array(9, 5, 4).astype(jnp.bfloat16)
        expected = np.asarray(half, np.float64)
        for _ in range(4):
            expected = np.tanh(1.5 * expected)
        got = np.asarray(attempt(answer, half, 4, name="rounds"), np.float64)
        expect_close(got, expected, call=call_text(answer, (half, 4), name="rounds"), rtol=0.06, atol=0.06)
        for times, (rows, n) in ((4, (32768, 8192)), (7, (65536, 4096))):

            def several(a, times=times):
                return answer(a, times)

            program = _compiled_answer(several, (_bf16(8, 128),), (_bf16(rows, n),), "rounds")
            looped = any(kernel.times != 1 for kernel in program.kernels)
            cause = (
                "What is in a loop's body is launched anew each round."
                if looped
                else "Something as large as `a` is kept besides."
            )
            _expect_bytes(program, 4 * rows * n, f"`rounds(a, {times})`", cause)
