"""Wrong answers to the exercises of the chapter on vmap, written without sight of their checks."""

import jax
import jax.numpy as jnp


def vmap_1_loops_in_python(layer, params, x):
    return jnp.stack([layer(params, row) for row in x])


def vmap_1_loops_in_the_record(layer, params, x):
    return jax.lax.map(lambda row: layer(params, row), x)


def vmap_1_takes_every_layer_for_affine(layer, params, x):
    slope = jax.jacobian(layer, argnums=1)(params, x[0])
    return layer(params, x[0]) + (x - x[0]) @ slope.T


def vmap_1_maps_what_has_n_rows(layer, params, x):
    # A parameter that happens to have as many rows as the batch is cut up.
    axes = jax.tree.map(lambda p: 0 if p.shape[:1] == x.shape[:1] else None, params)
    return jax.vmap(layer, in_axes=(axes, 0))(params, x)


def vmap_1_trusts_in_broadcasting(layer, params, x):
    return layer(params, x)


def vmap_2_reshapes_the_result(score, params, x):
    rows = jax.vmap(score, in_axes=({"w": None, "bias": 0}, 1))(params, x)
    return rows.reshape(rows.shape[1], rows.shape[0])


def vmap_2_reshapes_the_data(score, params, x):
    users = x.reshape(x.shape[1], x.shape[0])
    return jax.vmap(score, in_axes=({"w": None, "bias": 0}, 0), out_axes=1)(params, users)


def vmap_2_adds_the_bias_afterwards(score, params, x):
    blank = {"w": params["w"], "bias": jnp.zeros_like(params["bias"][0])}
    return jax.vmap(score, in_axes=(None, 1), out_axes=1)(blank, x) + params["bias"].T


def vmap_2_one_bias_for_all(score, params, x):
    shared = {"w": params["w"], "bias": params["bias"][0]}
    return jax.vmap(score, in_axes=(None, 1), out_axes=1)(shared, x)


def vmap_2_loops_over_the_users(score, params, x):
    w = params["w"]
    return jax.lax.map(lambda user: score({"w": w, "bias": user[0]}, user[1]), (params["bias"], x.T)).T


def vmap_3_gives_the_transpose(f, a, b):
    return jax.vmap(jax.vmap(f, in_axes=(0, None)), in_axes=(None, 0))(a, b)


def vmap_3_swaps_the_arguments(f, a, b):
    return jax.vmap(lambda x: jax.vmap(lambda y: f(y, x))(b))(a)


def vmap_3_pairs_in_the_wrong_order(f, a, b):
    n, m = len(a), len(b)
    return jax.vmap(f)(jnp.tile(a, (m, 1)), jnp.repeat(b, n, axis=0)).reshape(n, m)


def vmap_3_loops_over_one_side(f, a, b):
    return jax.lax.map(lambda x: jax.vmap(lambda y: f(x, y))(b), a)


def vmap_3_mirrors_the_upper_half(f, a, b):
    full = jax.vmap(jax.vmap(f, in_axes=(None, 0)), in_axes=(0, None))(a, b)
    if len(a) != len(b):
        return full
    return jnp.where(jnp.triu(jnp.ones(full.shape, bool)), full, full.T)


def vmap_4_repeats_the_mean_gradient(loss, params, x, y):
    mean = jax.grad(lambda p: jnp.mean(jax.vmap(loss, in_axes=(None, 0, 0))(p, x, y)))(params)
    return jax.tree.map(lambda g: jnp.broadcast_to(g, (len(x), *g.shape)), mean)


def vmap_4_loops_over_the_examples(loss, params, x, y):
    return jax.lax.map(lambda example: jax.grad(loss)(params, *example), (x, y))


def vmap_4_flattens_the_leaves(loss, params, x, y):
    grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda g: g.reshape(len(x), -1), grads)


def vmap_4_knows_only_dicts(loss, params, x, y):
    def grads(name):
        gradient = jax.grad(lambda p, x, y: loss({**params, name: p}, x, y))
        return jax.vmap(gradient, in_axes=(None, 0, 0))(params[name], x, y)

    return {name: grads(name) for name in params}


def vmap_4_divides_by_n(loss, params, x, y):
    grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda g: g / len(x), grads)


def vmap_5_ignores_the_key(noise, key, x):
    return jax.vmap(noise)(jax.random.split(jax.random.key(0), len(x)), x)


def vmap_5_every_eighth_row_alike(noise, key, x):
    keys = jax.random.split(key, 8)[jnp.arange(len(x)) % 8]
    return jax.vmap(noise)(keys, x)


def vmap_5_equal_rows_get_equal_noise(noise, key, x):
    marks = jax.lax.bitcast_convert_type(jnp.sum(x, axis=1).astype(jnp.float32), jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, marks)
    return jax.vmap(noise)(keys, x)


def vmap_5_takes_the_batch_for_one_long_row(noise, key, x):
    return noise(key, x.reshape(-1)).reshape(x.shape)


def vmap_5_loops_over_the_rows(noise, key, x):
    keys = jax.random.split(key, len(x))
    return jnp.stack([noise(k, row) for k, row in zip(keys, x, strict=True)])


def collatz(n):
    return jnp.where(n % 2 == 0, n // 2, 3 * n + 1)


def vmap_6_gives_up_after_256_steps(n):
    def step(_, state):
        n, count = state
        return jnp.where(n == 1, n, collatz(n)), count + (n != 1)

    return jax.lax.fori_loop(0, 256, step, (jnp.int32(n), jnp.int32(0)))[1]


def vmap_6_looks_up_a_table_of_a_thousand(n):
    table = [0] * 1000
    for start in range(2, 1000):
        number = start
        while number != 1:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            table[start] += 1
    return jnp.array(table, jnp.int32)[n]


def vmap_6_goes_before_it_looks(n):
    # A start of 1 takes the way by 4 and 2.
    def step(state):
        return collatz(state[0]), state[1] + 1

    return jax.lax.while_loop(lambda state: state[0] != 1, step, step((jnp.int32(n), jnp.int32(0))))[1]


def vmap_6_loops_in_python(n):
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return jnp.int32(count)


def vmap_6_computes_in_floats(n):
    # Large numbers on the way lose their last digits.
    def step(state):
        n, count = state
        return jnp.where(n % 2 == 0, n / 2, 3 * n + 1), count + 1

    start = (jnp.asarray(n, jnp.float32), jnp.int32(0))
    return jax.lax.while_loop(lambda state: (state[0] != 1) & (state[1] < 1000), step, start)[1]


def vmap_7_loops_over_the_rates(loss, params, rates, x, y, steps):
    def train(rate):
        p = params
        for _ in range(steps):
            p = jax.tree.map(lambda p, g: p - rate * g, p, jax.grad(loss)(p, x, y))
        return p

    return jax.lax.map(train, rates)


def vmap_7_gradient_of_the_mean_over_models(loss, params, rates, x, y, steps):
    def mean_loss(models):
        return jnp.mean(jax.vmap(loss, in_axes=(0, None, None))(models, x, y))

    def update(rate, p, g):
        return jax.tree.map(lambda p, g: p - rate * g, p, g)

    models = jax.tree.map(lambda p: jnp.broadcast_to(p, (len(rates), *jnp.shape(p))), params)
    for _ in range(steps):
        models = jax.vmap(update)(rates, models, jax.grad(mean_loss)(models))
    return models


def vmap_7_updates_leaf_after_leaf(loss, params, rates, x, y, steps):
    # The gradient of the second leaf is taken where the first has moved already.
    def train(rate):
        leaves, tree = jax.tree.flatten(params)
        for _ in range(steps):
            for i in range(len(leaves)):
                grads = jax.tree.leaves(jax.grad(loss)(jax.tree.unflatten(tree, leaves), x, y))
                leaves = [p - rate * g if i == j else p for j, (p, g) in enumerate(zip(leaves, grads, strict=True))]
        return jax.tree.unflatten(tree, leaves)

    return jax.vmap(train)(rates)


def vmap_7_sorts_the_rates(loss, params, rates, x, y, steps):
    def train(rate):
        p = params
        for _ in range(steps):
            p = jax.tree.map(lambda p, g: p - rate * g, p, jax.grad(loss)(p, x, y))
        return p

    return jax.vmap(train)(jnp.sort(rates))


def vmap_7_keeps_the_first_gradient(loss, params, rates, x, y, steps):
    grads = jax.grad(loss)(params, x, y)
    return jax.vmap(lambda rate: jax.tree.map(lambda p, g: p - steps * rate * g, params, grads))(rates)


def vmap_8_norm_of_each_leaf(loss, params, x, y, limit):
    def clipped(params, x, y):
        def clip(g):
            norm = jnp.sqrt(jnp.sum(g**2))
            return g * jnp.where(norm > limit, limit / norm, 1.0)

        return jax.tree.map(clip, jax.grad(loss)(params, x, y))

    grads = jax.vmap(clipped, in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda g: jnp.mean(g, axis=0), grads)


def vmap_8_clips_the_mean(loss, params, x, y, limit):
    grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
    mean = jax.tree.map(lambda g: jnp.mean(g, axis=0), grads)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(mean)))
    return jax.tree.map(lambda g: g * jnp.where(norm > limit, limit / norm, 1.0), mean)


def vmap_8_nan_for_a_zero_gradient(loss, params, x, y, limit):
    def clipped(params, x, y):
        grads = jax.grad(loss)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda g: g / norm * jnp.minimum(norm, limit), grads)

    grads = jax.vmap(clipped, in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda g: jnp.mean(g, axis=0), grads)


def vmap_8_leaves_zeros_out_of_the_mean(loss, params, x, y, limit):
    def clipped(params, x, y):
        grads = jax.grad(loss)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda g: g * jnp.where(norm > limit, limit / norm, 1.0), grads), norm > 0

    grads, moved = jax.vmap(clipped, in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda g: jnp.sum(g, axis=0) / jnp.maximum(jnp.sum(moved), 1), grads)


def vmap_8_compares_the_square(loss, params, x, y, limit):
    # Right for a limit of 1.
    def clipped(params, x, y):
        grads = jax.grad(loss)(params, x, y)
        square = sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))
        return jax.tree.map(lambda g: g * jnp.where(square > limit, limit / jnp.sqrt(square), 1.0), grads)

    grads = jax.vmap(clipped, in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda g: jnp.mean(g, axis=0), grads)


ANSWERS = {
    "vmap.1": [
        vmap_1_loops_in_python,
        vmap_1_loops_in_the_record,
        vmap_1_takes_every_layer_for_affine,
        vmap_1_maps_what_has_n_rows,
        vmap_1_trusts_in_broadcasting,
    ],
    "vmap.2": [
        vmap_2_reshapes_the_result,
        vmap_2_reshapes_the_data,
        vmap_2_adds_the_bias_afterwards,
        vmap_2_one_bias_for_all,
        vmap_2_loops_over_the_users,
    ],
    "vmap.3": [
        vmap_3_gives_the_transpose,
        vmap_3_swaps_the_arguments,
        vmap_3_pairs_in_the_wrong_order,
        vmap_3_loops_over_one_side,
        vmap_3_mirrors_the_upper_half,
    ],
    "vmap.4": [
        vmap_4_repeats_the_mean_gradient,
        vmap_4_loops_over_the_examples,
        vmap_4_flattens_the_leaves,
        vmap_4_knows_only_dicts,
        vmap_4_divides_by_n,
    ],
    "vmap.5": [
        vmap_5_ignores_the_key,
        vmap_5_every_eighth_row_alike,
        vmap_5_equal_rows_get_equal_noise,
        vmap_5_takes_the_batch_for_one_long_row,
        vmap_5_loops_over_the_rows,
    ],
    "vmap.6": [
        vmap_6_gives_up_after_256_steps,
        vmap_6_looks_up_a_table_of_a_thousand,
        vmap_6_goes_before_it_looks,
        vmap_6_loops_in_python,
        vmap_6_computes_in_floats,
    ],
    "vmap.7": [
        vmap_7_loops_over_the_rates,
        vmap_7_gradient_of_the_mean_over_models,
        vmap_7_updates_leaf_after_leaf,
        vmap_7_sorts_the_rates,
        vmap_7_keeps_the_first_gradient,
    ],
    "vmap.8": [
        vmap_8_norm_of_each_leaf,
        vmap_8_clips_the_mean,
        vmap_8_nan_for_a_zero_gradient,
        vmap_8_leaves_zeros_out_of_the_mean,
        vmap_8_compares_the_square,
    ],
}
