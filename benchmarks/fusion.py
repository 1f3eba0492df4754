"""What fusion saves, on a v5e that is not here: python -m benchmarks.fusion.

Six programs, each compiled as it comes and with the fusion pass off; kernels, bytes to and from HBM, the compiler's own
estimate of cycles. All figures are *compiled*; on the pinned pair (jax 0.10.2 with libtpu 0.0.42.1) they are compared
with those stored here, and a deviation of 1 % fails.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PINNED = {"jax": "0.10.2", "libtpu": "0.0.42.1"}
TARGET = "v5e:2x2"


@dataclass(frozen=True)
class Case:
    """One program with what it is expected to give: (kernels, HBM bytes in MB) fused and with fusion off."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    fused: tuple[int, float]
    off: tuple[int, float]


def cases() -> list[Case]:
    """Give the six programs; jax is imported here, so that --help is instant."""
    import jax
    import jax.numpy as jnp

    def layer(x: Any, w: Any, b: Any, s: Any) -> Any:
        return jax.nn.relu(x @ w + b) * s

    def elementwise(x: Any, b: Any, s: Any) -> Any:
        return jnp.tanh(jax.nn.relu(x + b) * s) + x

    def layernorm(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift

    def softmax(x: Any) -> Any:
        return jax.nn.softmax(x, -1)

    def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return jax.nn.gelu(x @ w1 + b1) @ w2 + b2

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)

    head = (2, 16, 4096, 128)
    return [
        Case("layer", layer, ((16384, 4096), (4096, 8192), (8192,), ()), (2, 469.8), (7, 3154.1)),
        Case("elementwise", elementwise, ((32768, 8192), (8192,), ()), (2, 1073.8), (9, 9126.8)),
        Case("layernorm", layernorm, ((32768, 8192), (8192,), (8192,)), (5, 2147.5), (17, 11274.6)),
        Case("softmax", softmax, ((32768, 8192),), (3, 2147.5), (7, 6442.5)),
        Case(
            "gelu MLP",
            mlp,
            ((16384, 4096), (4096, 16384), (16384,), (16384, 4096), (4096,)),
            (2, 1610.7),
            (17, 19059.0),
        ),
        Case("attention", attention, (head, head, head), (2, 2281.7), (3, 4429.2)),
    ]


def main() -> int:
    """Compile, print the table, compare; 1 if a figure moved on the pinned pair, 3 without a compiler."""
    import jax
    import jax.numpy as jnp
    from rich.console import Console
    from rich.table import Table

    from tpulab import xla

    table = Table(
        "program", "kernels", "MB", "cycles", "off: kernels", "MB", "cycles", "MB ratio", "cycle ratio", box=None
    )
    moved, versions = [], {}
    for case in cases():
        args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in case.shapes]
        try:
            fused, off = (xla.compile_for(TARGET, case.function, *args, fusion=on) for on in (True, False))
        except xla.CompilerMissing as missing:
            print(missing, file=sys.stderr)
            return 3
        versions = fused.versions
        for program, (kernels, megabytes) in ((fused, case.fused), (off, case.off)):
            if len(program.kernels) != kernels or abs(program.hbm_bytes / 1e6 / megabytes - 1) > 0.01:
                moved.append(
                    f"{case.name}: {len(program.kernels)} kernels, {program.hbm_bytes / 1e6:.1f} MB; expected {kernels}, {megabytes}"
                )
        table.add_row(case.name, *_figures(fused), *_figures(off), *_ratios(off, fused))
    Console(width=120).print(table)
    print(
        f"compiled for one chip of {TARGET} with {', '.join(f'{name} {version}' for name, version in versions.items())}; bf16"
    )
    pinned = all(versions.get(name) == version for name, version in PINNED.items())
    print("\n".join(moved) or "all as stored, to 1 %")
    return 1 if moved and pinned else 0


def _figures(program: Any) -> tuple[str, str, str]:
    stated = program.estimated_cycles
    return str(len(program.kernels)), f"{program.hbm_bytes / 1e6:,.1f}", "none" if stated is None else f"{stated:,}"


def _ratios(off: Any, fused: Any) -> tuple[str, str]:
    cycles = off.estimated_cycles / fused.estimated_cycles if fused.estimated_cycles else float("nan")
    return f"{off.hbm_bytes / fused.hbm_bytes:.1f}", f"{cycles:.1f}"


if __name__ == "__main__":
    sys.exit(main())
