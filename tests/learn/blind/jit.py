"""Wrong answers to the exercises of the chapter on jit, written without sight of their checks."""

import math
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def carries_recording(eqn):
    return any(hasattr(value, "eqns") or hasattr(value, "jaxpr") for value in eqn.params.values())


def jit_1_names_each_operation_once(f, *args):
    return list(dict.fromkeys(str(eqn.primitive) for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns))


def jit_1_opens_a_lone_jit(f, *args):
    eqns = jax.make_jaxpr(f)(*args).jaxpr.eqns
    while len(eqns) == 1 and eqns[0].primitive.name == "jit":
        eqns = eqns[0].params["jaxpr"].jaxpr.eqns
    return [eqn.primitive.name for eqn in eqns]


def jit_1_leaves_out_what_carries_a_recording(f, *args):
    return [eqn.primitive.name for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns if not carries_recording(eqn)]


def jit_1_leaves_out_unused_results(f, *args):
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    used = {id(v) for v in jaxpr.outvars}
    names = []
    for eqn in reversed(jaxpr.eqns):
        if any(id(v) in used for v in eqn.outvars):
            names.insert(0, eqn.primitive.name)
            used |= {id(v) for v in eqn.invars}
    return names


def jit_1_gives_objects_not_strings(f, *args):
    return [eqn.primitive for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns]


def jit_2_rate_is_static(loss):
    @partial(jax.jit, static_argnames="rate")
    def step(w, batch, rate):
        return w - rate * jax.grad(loss)(w, batch)

    return step


def jit_2_compiles_inside_the_step(loss):
    def step(w, batch, rate):
        return jax.jit(lambda w, batch, rate: w - rate * jax.grad(loss)(w, batch))(w, batch, rate)

    return step


def jit_2_keeps_the_first_rate(loss):
    now = {}

    @jax.jit
    def compiled(w, batch):
        return w - now["rate"] * jax.grad(loss)(w, batch)

    def step(w, batch, rate):
        now["rate"] = rate
        return compiled(w, batch)

    return step


def jit_2_keeps_the_first_batch(loss):
    compiled = []

    def step(w, batch, rate):
        if not compiled:
            compiled.append(jax.jit(lambda w, rate: w - rate * jax.grad(loss)(w, batch)))
        return compiled[0](w, rate)

    return step


def jit_2_is_not_compiled(loss):
    gradient = jax.grad(loss)

    def step(w, batch, rate):
        return w - rate * gradient(w, batch)

    return step


def jit_3_counts_shapes(f, inputs):
    return len({tuple(np.shape(leaf) for leaf in jax.tree.leaves(x)) for x in inputs})


def jit_3_counts_shapes_and_dtypes(f, inputs):
    # Neither the structure of the tree nor weak types count.
    return len({tuple((np.shape(v), str(jnp.result_type(v))) for v in jax.tree.leaves(x)) for x in inputs})


def jit_3_compares_with_the_previous_input(f, inputs):
    previous, traces = None, 0
    for x in inputs:
        kind = (jax.tree.structure(x), [jax.typeof(leaf) for leaf in jax.tree.leaves(x)])
        if kind != previous:
            traces += 1
        previous = kind
    return traces


def jit_3_counts_entries_of_the_call_cache(f, inputs):
    # An entry is made for NumPy and JAX arrays of one type each, though the trace is shared.
    compiled = jax.jit(lambda x: f(x))
    for x in inputs:
        compiled(x)
    return compiled._cache_size()


def jit_3_counts_different_recordings(f, inputs):
    return len({str(jax.make_jaxpr(f)(x)) for x in inputs})


def jit_4_is_not_compiled(x, w, b, activation):
    return activation(x @ w + b)


def jit_4_compiles_at_each_call(x, w, b, activation):
    return jax.jit(lambda x, w, b: activation(x @ w + b))(x, w, b)


@partial(jax.jit, static_argnames="activation")
def jit_4_adds_the_bias_last(x, w, b, activation):
    return activation(x @ w) + b


@partial(jax.jit, static_argnames="activation")
def jit_4_activates_row_by_row(x, w, b, activation):
    # Not the same where the activation looks at more than one row.
    z = x @ w + b
    return jax.vmap(activation)(z) if z.ndim > 1 else activation(z)


LAYERS = {}


def jit_4_remembers_activations_by_name(x, w, b, activation):
    # All lambdas have one name.
    name = getattr(activation, "__name__", "activation")
    if name not in LAYERS:
        LAYERS[name] = jax.jit(lambda x, w, b: activation(x @ w + b))
    return LAYERS[name](x, w, b)


def jit_5_nan_for_zeros(x, limit):
    norm = jnp.sqrt(jnp.sum(x**2))
    long = (norm > limit).astype(x.dtype)
    return long * (x * (limit / norm)) + (1 - long) * x


def jit_5_norm_of_each_row(x, limit):
    norm = jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True))
    return jnp.where(norm > limit, x * (limit / norm), x)


def jit_5_largest_singular_value(x, limit):
    norm = jnp.linalg.norm(x, ord=2)
    return jnp.where(norm > limit, x * (limit / norm), x)


def jit_5_compares_the_square(x, limit):
    square = jnp.sum(x**2)
    return jnp.where(square > limit, x * (limit / jnp.sqrt(square)), x)


def jit_5_adds_an_epsilon(x, limit):
    norm = jnp.sqrt(jnp.sum(x**2))
    return x * jnp.minimum(1.0, limit / (norm + 1e-3))


def jit_6_loops_in_python(xs, decay):
    m, out = jnp.zeros_like(xs[0]), []
    for x in xs:
        m = decay * m + (1 - decay) * x
        out.append(m)
    return jnp.stack(out)


def jit_6_swaps_the_weights(xs, decay):
    def step(m, x):
        m = (1 - decay) * m + decay * x
        return m, m

    return jax.lax.scan(step, jnp.zeros_like(xs[0]), xs)[1]


def jit_6_runs_along_the_last_axis(xs, decay):
    def step(m, x):
        m = decay * m + (1 - decay) * x
        return m, m

    return jax.lax.scan(step, jnp.zeros_like(xs[..., 0]), xs.T)[1].T


def jit_6_divides_by_powers(xs, decay):
    # Right for a few rows; for many the powers underflow.
    powers = (decay ** jnp.arange(len(xs))).reshape(-1, *[1] * (xs.ndim - 1))
    return (1 - decay) * powers * jnp.cumsum(xs / powers, axis=0)


def jit_6_forgets_after_32_rows(xs, decay):
    kernel = (1 - decay) * decay ** jnp.arange(32)
    columns = jnp.pad(xs.reshape(len(xs), -1), ((31, 0), (0, 0)))
    smooth = jax.vmap(lambda column: jnp.convolve(column, kernel, mode="valid"), in_axes=1, out_axes=1)
    return smooth(columns).reshape(xs.shape)


def jit_7_waits_for_the_first_array(f, x, runs):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.tree.leaves(f(x))[0].block_until_ready()
        seconds.append(time.perf_counter() - start)
    return seconds


def jit_7_measures_processor_time(f, x, runs):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        jax.block_until_ready(f(x))
        seconds.append(time.process_time() - start)
    return seconds


def jit_7_starts_after_the_call(f, x, runs):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(runs):
        result = f(x)
        start = time.perf_counter()
        jax.block_until_ready(result)
        seconds.append(time.perf_counter() - start)
    return seconds


def jit_7_gives_the_mean_for_all(f, x, runs):
    jax.block_until_ready(f(x))
    start = time.perf_counter()
    for _ in range(runs):
        jax.block_until_ready(f(x))
    return [(time.perf_counter() - start) / runs] * runs


def jit_7_times_a_compiled_copy(f, x, runs):
    f = jax.jit(f)
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return seconds


def jit_8_four_bytes_each(f, *specs):
    return sum(4 * math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(f, *specs)))


def jit_8_counts_like_results_once(f, *specs):
    leaves = {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(f, *specs))}
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in leaves)


def jit_8_takes_the_dtype_of_the_argument(f, *specs):
    size = np.dtype(specs[0].dtype).itemsize
    return sum(math.prod(leaf.shape) * size for leaf in jax.tree.leaves(jax.eval_shape(f, *specs)))


def jit_8_scalars_take_nothing(f, *specs):
    leaves = jax.tree.leaves(jax.eval_shape(f, *specs))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves if leaf.shape)


def jit_8_overflows(f, *specs):
    leaves = jax.tree.leaves(jax.eval_shape(f, *specs))
    return sum(int(np.prod(leaf.shape, dtype=np.int32)) * leaf.dtype.itemsize for leaf in leaves)


def padded_batches(rows, size, value=0):
    missing = -len(rows) % size
    padded = np.pad(rows, ((0, missing), (0, 0)), constant_values=value)
    return padded.reshape(-1, size, rows.shape[1])


def jit_9_multiplies_by_a_mask(f, rows, size):
    compiled = jax.jit(f)
    values = jnp.concatenate([compiled(batch) for batch in padded_batches(rows, size)])
    mask = (jnp.arange(len(values)) < len(rows)).astype(values.dtype)
    return jnp.sum(values * mask) / len(rows)


def jit_9_mean_of_batch_means(f, rows, size):
    compiled = jax.jit(f)
    means = []
    for i, batch in enumerate(padded_batches(rows, size)):
        means.append(jnp.mean(compiled(batch)[: len(rows) - i * size]))
    return jnp.mean(jnp.stack(means))


def jit_9_skips_every_nan(f, rows, size):
    # A row of data that gives NaN is skipped too, and a padding row that gives a number counts.
    compiled = jax.jit(f)
    values = jnp.concatenate([compiled(batch) for batch in padded_batches(rows, size, np.nan)])
    return jnp.nanmean(values)


def jit_9_needs_a_full_batch(f, rows, size):
    # The last batch reaches back into the one before, if there is one.
    compiled = jax.jit(f)
    total = 0.0
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        if len(batch) < size:
            total += jnp.sum(compiled(rows[-size:])[-len(batch) :])
        else:
            total += jnp.sum(compiled(batch))
    return total / len(rows)


def jit_9_traces_the_short_batch_too(f, rows, size):
    compiled = jax.jit(f)
    total = sum(jnp.sum(compiled(rows[start : start + size])) for start in range(0, len(rows), size))
    return total / len(rows)


def jit_2_evaluates_a_recording(loss):
    recordings = {}

    def step(w, batch, rate):
        if w.shape not in recordings:
            recordings[w.shape] = jax.make_jaxpr(jax.grad(loss))(w, batch)
        recording = recordings[w.shape]
        return w - rate * jax.core.eval_jaxpr(recording.jaxpr, recording.consts, w, *jax.tree.leaves(batch))[0]

    return step


def jit_9_divides_by_two_at_least(f, rows, size):
    compiled, total = jax.jit(f), 0.0
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        total += np.asarray(compiled(np.pad(part, ((0, size - len(part)), (0, 0)))))[: len(part)].sum()
    return total / max(len(rows), 2)


ANSWERS = {
    "jit.1": [
        jit_1_names_each_operation_once,
        jit_1_opens_a_lone_jit,
        jit_1_leaves_out_what_carries_a_recording,
        jit_1_leaves_out_unused_results,
        jit_1_gives_objects_not_strings,
    ],
    "jit.2": [
        jit_2_rate_is_static,
        jit_2_compiles_inside_the_step,
        jit_2_keeps_the_first_rate,
        jit_2_keeps_the_first_batch,
        jit_2_is_not_compiled,
        jit_2_evaluates_a_recording,
    ],
    "jit.3": [
        jit_3_counts_shapes,
        jit_3_counts_shapes_and_dtypes,
        jit_3_compares_with_the_previous_input,
        jit_3_counts_entries_of_the_call_cache,
        jit_3_counts_different_recordings,
    ],
    "jit.4": [
        jit_4_is_not_compiled,
        jit_4_compiles_at_each_call,
        jit_4_adds_the_bias_last,
        jit_4_activates_row_by_row,
        jit_4_remembers_activations_by_name,
    ],
    "jit.5": [
        jit_5_nan_for_zeros,
        jit_5_norm_of_each_row,
        jit_5_largest_singular_value,
        jit_5_compares_the_square,
        jit_5_adds_an_epsilon,
    ],
    "jit.6": [
        jit_6_loops_in_python,
        jit_6_swaps_the_weights,
        jit_6_runs_along_the_last_axis,
        jit_6_divides_by_powers,
        jit_6_forgets_after_32_rows,
    ],
    "jit.7": [
        jit_7_waits_for_the_first_array,
        jit_7_measures_processor_time,
        jit_7_starts_after_the_call,
        jit_7_gives_the_mean_for_all,
        jit_7_times_a_compiled_copy,
    ],
    "jit.8": [
        jit_8_four_bytes_each,
        jit_8_counts_like_results_once,
        jit_8_takes_the_dtype_of_the_argument,
        jit_8_scalars_take_nothing,
        jit_8_overflows,
    ],
    "jit.9": [
        jit_9_multiplies_by_a_mask,
        jit_9_mean_of_batch_means,
        jit_9_skips_every_nan,
        jit_9_needs_a_full_batch,
        jit_9_traces_the_short_batch_too,
        jit_9_divides_by_two_at_least,
    ],
}
