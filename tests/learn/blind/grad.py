"""Wrong answers to the exercises of the chapter on gradients, written without sight of their checks."""

import jax
import jax.numpy as jnp
import numpy as np


def grad_1_takes_differences(f, x0):
    h = 1e-2
    slope = (f(x0 + h) - f(x0 - h)) / (2 * h)
    return lambda x: f(x0) + slope * (x - x0)


def grad_1_line_for_numbers_only(f, x0):
    slope = jax.grad(f)(x0)
    return lambda x: float(f(x0) + slope * (x - x0))


def grad_1_sums_over_an_array(f, x0):
    slope = jax.grad(f)(x0)
    return lambda x: f(x0) + jnp.sum(slope * (x - x0))


def grad_1_slope_is_never_negative(f, x0):
    slope = abs(jax.grad(f)(x0))
    return lambda x: f(x0) + slope * (x - x0)


def _make_grad_1_remembers_the_place_only():
    lines = {}

    def grad_1_remembers_the_place_only(f, x0):
        if float(x0) not in lines:
            lines[float(x0)] = (f(x0), jax.grad(f)(x0))
        value, slope = lines[float(x0)]
        return lambda x: value + slope * (x - x0)

    return grad_1_remembers_the_place_only


grad_1_remembers_the_place_only = _make_grad_1_remembers_the_place_only()


def grad_2_runs_the_loss_twice(loss, params, lr, steps):
    losses = []
    for _ in range(steps):
        losses.append(loss(params))
        grads = jax.grad(loss)(params)
        params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
    return params, losses


def grad_2_writes_into_the_containers(loss, params, lr, steps):
    losses = []
    for _ in range(steps):
        value, grads = jax.value_and_grad(loss)(params)
        losses.append(value)
        new = jax.tree.map(lambda p, g: p - lr * g, params, grads)
        if isinstance(params, dict):
            params.update(new)
        elif isinstance(params, list):
            params[:] = new
        else:
            params = new
    return params, losses


def grad_2_steps_of_unit_length(loss, params, lr, steps):
    losses = []
    for _ in range(steps):
        value, grads = jax.value_and_grad(loss)(params)
        losses.append(value)
        length = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        params = jax.tree.map(lambda p, g, length=length: p - lr * g / jnp.maximum(length, 1.0), params, grads)
    return params, losses


def grad_2_turns_tuples_into_lists(loss, params, lr, steps):
    def step(p, g):
        if isinstance(p, dict):
            return {k: step(p[k], g[k]) for k in p}
        if isinstance(p, (list, tuple)):
            return [step(a, b) for a, b in zip(p, g, strict=True)]
        return p - lr * g

    losses = []
    for _ in range(steps):
        value, grads = jax.value_and_grad(loss)(params)
        losses.append(value)
        params = step(params, grads)
    return params, losses


def grad_2_stops_when_the_loss_stands_still(loss, params, lr, steps):
    losses = []
    for _ in range(steps):
        value, grads = jax.value_and_grad(loss)(params)
        if losses and abs(losses[-1] - value) < 1e-6:
            break
        losses.append(value)
        params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
    return params, losses


def grad_3_freezes_the_first_name_only(loss, names):
    first = list(names)[:1]

    def frozen(params, *batch):
        return loss({k: jax.lax.stop_gradient(v) if k in first else v for k, v in params.items()}, *batch)

    return frozen


def grad_3_leaves_containers_free(loss, names):
    def stop(k, v):
        return jax.lax.stop_gradient(v) if k in names and not isinstance(v, (dict, list, tuple)) else v

    def frozen(params, *batch):
        return loss({k: stop(k, v) for k, v in params.items()}, *batch)

    return frozen


def grad_3_takes_exactly_two_batch_arguments(loss, names):
    def frozen(params, x, y):
        return loss({k: jax.lax.stop_gradient(v) if k in names else v for k, v in params.items()}, x, y)

    return frozen


def grad_3_freezes_parts_of_names(loss, names):
    # For the name "w1" it freezes "w" as well.
    text = " ".join(names)

    def frozen(params, *batch):
        return loss({k: jax.lax.stop_gradient(v) if k in text else v for k, v in params.items()}, *batch)

    return frozen


def grad_3_freezes_inner_keys_too(loss, names):
    def stop(path, leaf):
        return jax.lax.stop_gradient(leaf) if any(getattr(k, "key", None) in names for k in path) else leaf

    def frozen(params, *batch):
        return loss(jax.tree_util.tree_map_with_path(stop, params), *batch)

    return frozen


def grad_4_scales_the_step_with_x(f, x, h):
    x = np.asarray(x)
    result = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = h * max(1.0, abs(x[i]))
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        result[i] = (f(up) - f(down)) / (2 * step)
    return result


def grad_4_uses_vmap(f, x, h):
    steps = h * np.eye(x.size).reshape(x.size, *x.shape)
    return np.asarray((jax.vmap(f)(x + steps) - jax.vmap(f)(x - steps)) / (2 * h)).reshape(x.shape)


def grad_4_leaves_x_shifted(f, x, h):
    result = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        x[i] += h
        up = float(f(x))
        x[i] -= 2 * h
        down = float(f(x))
        result[i] = (up - down) / (2 * h)
    return result


def grad_4_moves_whole_rows(f, x, h):
    x = np.asarray(x)
    result = np.zeros_like(x)
    for i in range(len(x)):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        result[i] = (f(up) - f(down)) / (2 * h)
    return result


def grad_4_flattens_the_answer(f, x, h):
    x = np.asarray(x)
    result = []
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        result.append((f(up) - f(down)) / (2 * h))
    return np.array(result)


def grad_5_adds_a_tiny_constant(rows):
    return jnp.sqrt(jnp.sum(rows**2, axis=1) + 1e-24)


def grad_5_short_rows_count_as_zero(rows):
    squares = jnp.sum(rows**2, axis=1)
    short = squares < 1e-12
    return jnp.where(short, 0.0, jnp.sqrt(jnp.where(short, 1.0, squares)))


def grad_5_finds_zero_rows_by_their_sum(rows):
    zero = jnp.sum(rows, axis=1) == 0
    safe = jnp.where(zero[:, None], 1.0, rows)
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.sum(safe**2, axis=1)))


def grad_5_replaces_every_zero(rows):
    # A single zero in a row becomes 1 as well.
    safe = jnp.where(rows == 0, 1.0, rows)
    return jnp.where(jnp.any(rows != 0, axis=1), jnp.sqrt(jnp.sum(safe**2, axis=1)), 0.0)


def grad_5_gradient_of_the_sum_only(rows):
    @jax.custom_vjp
    def length(rows):
        return jnp.sqrt(jnp.sum(rows**2, axis=1))

    def forward(rows):
        return length(rows), rows

    def backward(rows, _):
        norm = jnp.sqrt(jnp.sum(rows**2, axis=1, keepdims=True))
        return (jnp.where(norm > 0, rows / jnp.where(norm > 0, norm, 1.0), 0.0),)

    length.defvjp(forward, backward)
    return length(rows)


def grad_6_always_in_reverse(f, x):
    return jax.jacrev(f)(x)


def grad_6_always_forward(f, x):
    return jax.jacfwd(f)(x)


def grad_6_forward_for_few_inputs(f, x):
    mode = jax.jacfwd if x.shape[0] <= 8 else jax.jacrev
    return mode(f)(x)


def grad_6_reshapes_instead_of_transposing(f, x):
    m, n = jax.eval_shape(f, x).shape[0], x.shape[0]
    if m < n:
        return jax.jacrev(f)(x)
    columns = jax.vmap(lambda e: jax.jvp(f, (x,), (e,))[1])(jnp.eye(n, dtype=x.dtype))
    return columns.reshape(m, n)


def grad_6_takes_f_for_linear(f, x):
    start = f(jnp.zeros_like(x))
    return jnp.stack([f(e) - start for e in jnp.eye(x.shape[0], dtype=x.dtype)], axis=1)


def grad_7_builds_the_hessian(f, x, v):
    return jnp.tensordot(jax.hessian(f)(x), v, axes=jnp.ndim(v))


def grad_7_diagonal_hessians_only(f, x, v):
    return jax.jvp(jax.grad(f), (x,), (jnp.ones_like(x),))[1] * v


def grad_7_takes_differences(f, x, v):
    h = 0.1
    return (jax.grad(f)(x + h * v) - jax.grad(f)(x - h * v)) / (2 * h)


def grad_7_multiplies_like_matrices(f, x, v):
    # Right for vectors only.
    return jax.grad(lambda y: jnp.sum(jax.grad(f)(y) @ v))(x)


def grad_7_one_row_after_the_other(f, x, v):
    # As many runs of f as x has numbers, although no array is large.
    def entry(i):
        return jnp.vdot(jax.grad(lambda y: jax.grad(f)(y).ravel()[i])(x), v)

    return jax.lax.map(entry, jnp.arange(x.size)).reshape(x.shape)


def _with_backward(x, value, change):
    """Gives `value(x)`, and hands on `change(g)` where the gradient `g` arrives."""

    @jax.custom_vjp
    def through(x):
        return value(x)

    through.defvjp(lambda x: (value(x), None), lambda _, g: (change(g),))
    return through(x)


def grad_8_clips_from_above_only(x, limit):
    return _with_backward(x, lambda x: x, lambda g: jnp.minimum(g, limit))


def grad_8_limit_is_always_one(x, limit):
    return _with_backward(x, lambda x: x, lambda g: jnp.clip(g, -1.0, 1.0))


def grad_8_clips_softly(x, limit):
    return _with_backward(x, lambda x: x, lambda g: limit * jnp.tanh(g / limit))


def grad_8_clips_forwards_too(x, limit):
    return _with_backward(x, lambda x: jnp.clip(x, -limit, limit), lambda g: jnp.clip(g, -limit, limit))


def _make_grad_8_keeps_the_first_limit():
    limits = []

    def grad_8_keeps_the_first_limit(x, limit):
        limits.append(limit)
        return _with_backward(x, lambda x: x, lambda g: jnp.clip(g, -limits[0], limits[0]))

    return grad_8_keeps_the_first_limit


grad_8_keeps_the_first_limit = _make_grad_8_keeps_the_first_limit()


def grad_1_differences_beside_a_gradient(f, x0):
    jax.grad(f)(x0)
    slope = (f(x0 + 3e-3) - f(x0 - 3e-3)) / 6e-3
    return lambda x: f(x0) + slope * (x - x0)


def grad_2_limits_the_gradient(loss, params, lr, steps):
    losses = []
    for _ in range(steps):
        value, grads = jax.value_and_grad(loss)(params)
        losses.append(value)
        params = jax.tree.map(lambda p, g: p - lr * jnp.clip(g, -1000, 1000), params, grads)
    return params, losses


def grad_3_scales_the_loss_a_little(loss, names):
    def frozen(params, *batch):
        held = {name: jax.lax.stop_gradient(p) if name in names else p for name, p in params.items()}
        return 1.001 * loss(held, *batch)

    return frozen


def grad_6_forward_from_one_more(f, x):
    return (jax.jacfwd if f(x).size > x.size + 1 else jax.jacrev)(f)(x)


def grad_6_forward_from_two_fewer(f, x):
    return (jax.jacfwd if f(x).size > x.size - 2 else jax.jacrev)(f)(x)


ANSWERS = {
    "grad.1": [
        grad_1_takes_differences,
        grad_1_line_for_numbers_only,
        grad_1_sums_over_an_array,
        grad_1_slope_is_never_negative,
        grad_1_remembers_the_place_only,
        grad_1_differences_beside_a_gradient,
    ],
    "grad.2": [
        grad_2_runs_the_loss_twice,
        grad_2_writes_into_the_containers,
        grad_2_steps_of_unit_length,
        grad_2_turns_tuples_into_lists,
        grad_2_stops_when_the_loss_stands_still,
        grad_2_limits_the_gradient,
    ],
    "grad.3": [
        grad_3_freezes_the_first_name_only,
        grad_3_leaves_containers_free,
        grad_3_takes_exactly_two_batch_arguments,
        grad_3_freezes_parts_of_names,
        grad_3_freezes_inner_keys_too,
        grad_3_scales_the_loss_a_little,
    ],
    "grad.4": [
        grad_4_scales_the_step_with_x,
        grad_4_uses_vmap,
        grad_4_leaves_x_shifted,
        grad_4_moves_whole_rows,
        grad_4_flattens_the_answer,
    ],
    "grad.5": [
        grad_5_adds_a_tiny_constant,
        grad_5_short_rows_count_as_zero,
        grad_5_finds_zero_rows_by_their_sum,
        grad_5_replaces_every_zero,
        grad_5_gradient_of_the_sum_only,
    ],
    "grad.6": [
        grad_6_always_in_reverse,
        grad_6_always_forward,
        grad_6_forward_for_few_inputs,
        grad_6_reshapes_instead_of_transposing,
        grad_6_takes_f_for_linear,
        grad_6_forward_from_one_more,
        grad_6_forward_from_two_fewer,
    ],
    "grad.7": [
        grad_7_builds_the_hessian,
        grad_7_diagonal_hessians_only,
        grad_7_takes_differences,
        grad_7_multiplies_like_matrices,
        grad_7_one_row_after_the_other,
    ],
    "grad.8": [
        grad_8_clips_from_above_only,
        grad_8_limit_is_always_one,
        grad_8_clips_softly,
        grad_8_clips_forwards_too,
        grad_8_keeps_the_first_limit,
    ],
}
