"""One training step of a model with 6 billion parameters, compiled for 512 chips on this machine, and read.

python -m benchmarks.six_billion [--target v4:8x8x8] [--layers 28]

Nothing is allocated and nothing runs: every argument is a shape. The model is the shape of KoGPT (kakaobrain/kogpt,
model card, read 2026-11-30): 28 layers, width 4096, 16 heads, feed-forward 16384, vocabulary 64512, context 2048, a
head of its own.
"""

import argparse
import resource
import sys
import time
from typing import Any

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, CONTEXT = 28, 4096, 16, 16384, 64512, 2048
MODEL_WAYS = 4  # how many chips share one matrix; the others share rows of the batch and of the parameters


def parameters(layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the parameters' shapes, float32, and how they lie on the mesh axes "fsdp" and "model"."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    shapes = {
        "embed": ((VOCABULARY, WIDTH), P("fsdp", "model")),
        "head": ((WIDTH, VOCABULARY), P("fsdp", "model")),
        "head_bias": ((VOCABULARY,), P("model")),
        "norm": ((WIDTH,), P()),
        "layer_norm": ((layers, WIDTH), P()),
        "query_key_value": ((layers, 3, WIDTH, HEADS, WIDTH // HEADS), P(None, None, "fsdp", "model", None)),
        "out": ((layers, HEADS, WIDTH // HEADS, WIDTH), P(None, "model", None, "fsdp")),
        "up": ((layers, WIDTH, HIDDEN), P(None, "fsdp", "model")),
        "up_bias": ((layers, HIDDEN), P(None, "model")),
        "down": ((layers, HIDDEN, WIDTH), P(None, "model", "fsdp")),
        "down_bias": ((layers, WIDTH), P()),
    }
    structs = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, (shape, _) in shapes.items()}
    return structs, {name: spec for name, (_, spec) in shapes.items()}


def loss(params: dict[str, Any], tokens: Any, mesh: Any) -> Any:
    """Mean cross entropy of the next token; bfloat16 products, float32 sums."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    # Left to itself, the compiler spreads the activations' width in place of the batch, and the step does not fit.
    by_rows = NamedSharding(mesh, P("fsdp"))

    names = ("layer_norm", "query_key_value", "out", "up", "up_bias", "down", "down_bias")
    low = {name: value.astype(jnp.bfloat16) for name, value in params.items()}

    def normalized(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale

    @jax.checkpoint
    def layer(x: Any, p: dict[str, Any]) -> tuple[Any, None]:
        y = normalized(x, p["layer_norm"])
        query, key, value = jnp.einsum("btd,sdhk->sbthk", y, p["query_key_value"])
        scores = jnp.einsum("bthk,bshk->bhts", query, key).astype(jnp.float32) / (WIDTH // HEADS) ** 0.5
        seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1).astype(x.dtype)
        attended = jnp.einsum("bhts,bshk->bthk", weights, value)
        attended = jnp.einsum("bthk,hkd->btd", attended, p["out"])
        fed = jax.nn.gelu(y @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]
        return jax.lax.with_sharding_constraint(x + attended + fed, by_rows), None

    x = jax.lax.with_sharding_constraint(low["embed"][tokens[:, :-1]], by_rows)
    x, _ = jax.lax.scan(layer, x, {name: low[name] for name in names})
    logits = (normalized(x, low["norm"]) @ low["head"] + low["head_bias"]).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()


def step(params: Any, moments: Any, tokens: Any, mesh: Any) -> tuple[Any, Any, Any]:
    """One step of AdamW."""
    import jax
    import optax

    value, gradients = jax.value_and_grad(loss)(params, tokens, mesh)
    updates, moments = optax.adamw(1e-4).update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments, value


def arguments(
    target_chips: int, layers: int, *, sharded: bool
) -> tuple[dict[str, int], tuple[Any, ...], tuple[Any, ...]]:
    """Give mesh, arguments as shapes, and how each of them lies."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import PartitionSpec as P

    params, specs = parameters(layers)
    if not sharded:
        specs = dict.fromkeys(params, P())
    moments = jax.eval_shape(optax.adamw(1e-4).init, params)
    adam, *rest = moments
    lies = (adam._replace(count=P(), mu=specs, nu=specs), *rest)
    mesh = {"fsdp": target_chips // MODEL_WAYS, "model": MODEL_WAYS}
    tokens = jax.ShapeDtypeStruct((2 * mesh["fsdp"], CONTEXT + 1), jnp.int32)
    return mesh, (params, moments, tokens), (specs, lies, P("fsdp"))


def compiled_step(target: str, layers: int, *, sharded: bool = True) -> Any:
    """Compile one step; gives what the compiler gave back."""
    from jax.sharding import PartitionSpec as P

    from tpulab import xla
    from tpulab.xla.compiler import compiled_for
    from tpulab.xla.lowering import call_of
    from tpulab.xla.target import parse

    mesh, args, lies = arguments(parse(target).devices, layers, sharded=sharded)
    placed = xla.mesh_for(target, mesh)

    def train_step(params: Any, moments: Any, tokens: Any) -> Any:
        return step(params, moments, tokens, placed)

    call = call_of(train_step, args, {}, lies, (lies[0], lies[1], P()), (), (), (0, 1))
    return compiled_for(target, call, mesh=placed)


def main() -> int:
    """Compile, read and print; the data-parallel form must be refused with a readable message."""
    from tpulab import xla
    from tpulab.xla.reading import from_compiled

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.six_billion", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--target", default="v4:8x8x8", help="a topology of whole chips")
    parser.add_argument("--layers", type=int, default=LAYERS)
    chosen = parser.parse_args()
    started = time.perf_counter()
    program = from_compiled(compiled_step(chosen.target, chosen.layers))
    seconds = time.perf_counter() - started
    print(program.report())
    if memory := program.memory:
        print(f"\npeak memory a chip: {memory.peak_bytes:,} bytes of {memory.capacity_bytes:,} (compiled)")
    print(f"compiled and read in {seconds:.1f} s; this process took {_peak_gb():.2f} GB at most (measured)")
    try:
        compiled_step(chosen.target, chosen.layers, sharded=False)
    except xla.DoesNotFit as refusal:
        print(f"\nwith all parameters on every chip: {refusal}")
        return 0
    print("with all parameters on every chip it fits too", file=sys.stderr)
    return 1


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)


if __name__ == "__main__":
    sys.exit(main())
