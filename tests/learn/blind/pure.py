"""Wrong answers to the exercises of the chapter on pure functions, written without sight of their checks."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np


def pure_1_turns_tuples_into_lists(params, grads, rate):
    if isinstance(params, dict):
        return {k: pure_1_turns_tuples_into_lists(params[k], grads[k], rate) for k in params}
    if isinstance(params, (list, tuple)):
        return [pure_1_turns_tuples_into_lists(p, g, rate) for p, g in zip(params, grads, strict=True)]
    return params - rate * grads


def pure_1_rate_is_always_a_tenth(params, grads, rate):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def pure_1_writes_into_the_containers(params, grads, rate):
    if isinstance(params, (dict, list)):
        for k in params if isinstance(params, dict) else range(len(params)):
            params[k] = pure_1_writes_into_the_containers(params[k], grads[k], rate)
        return params
    if isinstance(params, tuple):
        return tuple(pure_1_writes_into_the_containers(p, g, rate) for p, g in zip(params, grads, strict=True))
    return params - rate * grads


def pure_1_changes_numpy_arrays_in_place(params, grads, rate):
    def step(p, g):
        p -= rate * g
        return p

    return jax.tree.map(step, params, grads)


def pure_1_pairs_by_insertion_order(params, grads, rate):
    # Right only where both dicts were filled in the same order.
    if isinstance(params, dict):
        pairs = zip(params.items(), grads.values(), strict=True)
        return {k: pure_1_pairs_by_insertion_order(p, g, rate) for (k, p), g in pairs}
    if isinstance(params, (list, tuple)):
        return type(params)(pure_1_pairs_by_insertion_order(p, g, rate) for p, g in zip(params, grads, strict=True))
    return params - rate * grads


def pure_2_keeps_with_probability_rate(key, x, rate, train):
    if not train:
        return x
    keep = jax.random.bernoulli(key, rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0.0)


def pure_2_drops_whole_columns(key, x, rate, train):
    if not train:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape[-1:])
    return jnp.where(keep, x / (1 - rate), 0.0)


def pure_2_drops_a_fixed_number(key, x, rate, train):
    # Not independent: the number of zeros is always the same.
    if not train:
        return x
    keep = jax.random.permutation(key, jnp.arange(x.size) >= round(rate * x.size)).reshape(x.shape)
    return jnp.where(keep, x / (1 - rate), 0.0)


def pure_2_ignores_the_key(key, x, rate, train):
    if not train:
        return x
    keep = jax.random.bernoulli(jax.random.key(0), 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0.0)


def pure_2_divides_by_the_share_that_was_kept(key, x, rate, train):
    if not train:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / jnp.maximum(jnp.mean(keep), 1 / x.size), 0.0)


def pure_3_subtracts_the_running_mean_in_training(state, x, train):
    if train:
        mean = 0.9 * state["mean"] + 0.1 * jnp.mean(x, axis=0)
        return x - mean, {"mean": mean, "steps": state["steps"] + 1}
    return x - state["mean"], dict(state)


def pure_3_writes_into_the_state(state, x, train):
    if not train:
        return x - state["mean"], state
    mean = jnp.mean(x, axis=0)
    state["mean"] = 0.9 * state["mean"] + 0.1 * mean
    state["steps"] += 1
    return x - mean, state


def pure_3_counts_evaluations_too(state, x, train):
    mean = jnp.mean(x, axis=0) if train else state["mean"]
    return x - mean, {"mean": 0.9 * state["mean"] + 0.1 * mean, "steps": state["steps"] + 1}


def pure_3_first_batch_sets_the_mean(state, x, train):
    if not train:
        return x - state["mean"], dict(state)
    mean = jnp.mean(x, axis=0)
    running = jnp.where(state["steps"] == 0, mean, 0.9 * state["mean"] + 0.1 * mean)
    return x - mean, {"mean": running, "steps": state["steps"] + 1}


def pure_3_does_not_compile(state, x, train):
    if not train:
        return x - state["mean"], dict(state)
    mean = np.asarray(x).mean(axis=0)
    return x - mean, {"mean": 0.9 * state["mean"] + 0.1 * mean, "steps": state["steps"] + 1}


def pure_4_counts_negatives_as_zero(values, bins):
    return jnp.bincount(values, length=bins)


def pure_4_last_bin_takes_its_right_edge(values, bins):
    counts, _ = jnp.histogram(values, bins=bins, range=(0, bins))
    return counts.astype(jnp.int32)


def pure_4_does_not_compile(values, bins):
    inside = values[(values >= 0) & (values < bins)]
    return jnp.zeros(bins, jnp.int32).at[inside].add(1)


def pure_4_counts_in_eight_bits(values, bins):
    return jnp.sum(values[:, None] == jnp.arange(bins), axis=0, dtype=jnp.int8)


def pure_4_guards_minus_one_only(values, bins):
    # All other negative indices count from the end.
    values = jnp.where(values == -1, bins, values)
    return jnp.zeros(bins, jnp.int32).at[values].add(1, mode="drop")


def pure_5_keeps_only_letters_and_digits(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {"/".join(re.findall(r"\w+", jax.tree_util.keystr(path))): leaf.size for path, leaf in leaves}


def pure_5_leaves_tuples_out(params):
    sizes = {}

    def visit(node, path):
        if isinstance(node, dict):
            for k, child in node.items():
                visit(child, [*path, str(k)])
        elif isinstance(node, list):
            for i, child in enumerate(node):
                visit(child, [*path, str(i)])
        elif hasattr(node, "size"):
            sizes["/".join(path)] = node.size

    visit(params, [])
    return sizes


def pure_5_leaves_scalars_out(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    name = jax.tree_util.keystr
    return {name(path, simple=True, separator="/"): leaf.size for path, leaf in leaves if leaf.shape}


def pure_5_reads_one_digit_positions(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)

    def name(k):
        return str(k)[1] if isinstance(k, jax.tree_util.SequenceKey) else str(k.key)

    return {"/".join(name(k) for k in path): leaf.size for path, leaf in leaves}


def pure_5_multiplies_two_dimensions(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    name = jax.tree_util.keystr
    return {name(path, simple=True, separator="/"): math.prod(leaf.shape[:2]) for path, leaf in leaves}


def pure_6_same_numbers_for_equal_widths(key, sizes):
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        w = jax.random.normal(jax.random.fold_in(key, n_in), (n_in, n_out)) / jnp.sqrt(n_in)
        layers.append({"w": w, "b": jnp.zeros(n_out)})
    return layers


def pure_6_two_keys_in_turn(key, sizes):
    keys = jax.random.split(key, 2)
    layers = []
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        w = jax.random.normal(keys[i % 2], (n_in, n_out)) / jnp.sqrt(n_in)
        layers.append({"w": w, "b": jnp.zeros(n_out)})
    return layers


def pure_6_averages_inputs_and_outputs(key, sizes):
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        key, sub = jax.random.split(key)
        w = jax.random.normal(sub, (n_in, n_out)) * jnp.sqrt(2 / (n_in + n_out))
        layers.append({"w": w, "b": jnp.zeros(n_out)})
    return layers


def pure_6_draws_uniformly(key, sizes):
    # Mean and standard deviation are right.
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        key, sub = jax.random.split(key)
        limit = math.sqrt(3 / n_in)
        w = jax.random.uniform(sub, (n_in, n_out), minval=-limit, maxval=limit)
        layers.append({"w": w, "b": jnp.zeros(n_out)})
    return layers


def pure_6_cuts_the_tails(key, sizes):
    # Mean and standard deviation are right; nothing lies beyond 2.3 standard deviations.
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        key, sub = jax.random.split(key)
        w = jax.nn.initializers.lecun_normal()(sub, (n_in, n_out))
        layers.append({"w": w, "b": jnp.zeros(n_out)})
    return layers


def pure_7_compares_objects(draw, key):
    used, again = [], 0

    def sample(k):
        nonlocal again
        again += any(k is other for other in used)
        used.append(k)
        return jax.random.normal(k)

    draw(key, sample)
    return again


def pure_7_looks_back_one_call(draw, key):
    last, again = None, 0

    def sample(k):
        nonlocal last, again
        data = np.asarray(jax.random.key_data(k)).tobytes()
        again += data == last
        last = data
        return jax.random.normal(k)

    draw(key, sample)
    return again


def pure_7_watches_the_first_key_only(draw, key):
    root = np.asarray(jax.random.key_data(key)).tobytes()
    uses = 0

    def sample(k):
        nonlocal uses
        uses += np.asarray(jax.random.key_data(k)).tobytes() == root
        return jax.random.normal(k)

    draw(key, sample)
    return max(uses - 1, 0)


def pure_7_compares_one_decimal(draw, key):
    # Different keys often give numbers that agree this far.
    seen, again = set(), 0

    def sample(k):
        nonlocal again
        number = jax.random.normal(k)
        again += round(float(number), 1) in seen
        seen.add(round(float(number), 1))
        return number

    draw(key, sample)
    return again


def _make_pure_7_remembers_earlier_runs():
    seen = set()

    def pure_7_remembers_earlier_runs(draw, key):
        again = 0

        def sample(k):
            nonlocal again
            data = np.asarray(jax.random.key_data(k)).tobytes()
            again += data in seen
            seen.add(data)
            return jax.random.normal(k)

        draw(key, sample)
        return again

    return pure_7_remembers_earlier_runs


pure_7_remembers_earlier_runs = _make_pure_7_remembers_earlier_runs()


def pure_8_counts_rounding(make, inputs):
    plain, compiled = make(), jax.jit(make())
    return [i for i, x in enumerate(inputs) if not np.array_equal(plain(x), compiled(x))]


def pure_8_everything_after_the_first(make, inputs):
    plain, compiled = make(), jax.jit(make())
    for i, x in enumerate(inputs):
        if not np.allclose(plain(x), compiled(x)):
            return list(range(i, len(inputs)))
    return []


def pure_8_compares_sums(make, inputs):
    plain, compiled = make(), jax.jit(make())
    return [i for i, x in enumerate(inputs) if not np.allclose(jnp.sum(plain(x)), jnp.sum(compiled(x)), atol=1e-5)]


def pure_8_forgets_the_absolute_value(make, inputs):
    plain, compiled = make(), jax.jit(make())
    return [i for i, x in enumerate(inputs) if jnp.max(plain(x) - compiled(x)) > 1e-5]


def pure_8_misses_small_numbers(make, inputs):
    plain, compiled = make(), jax.jit(make())
    return [i for i, x in enumerate(inputs) if not np.allclose(plain(x), compiled(x), atol=1e-2)]


def pure_2_draws_in_opposite_pairs(key, x, rate, train):
    if not train:
        return x
    half = jax.random.uniform(key, ((x.size + 1) // 2,))
    keep = jnp.concatenate([half, 1 - half])[: x.size] >= rate
    return jnp.where(keep.reshape(x.shape), x / (1 - rate), 0.0)


def pure_2_draws_each_pair_once(key, x, rate, train):
    if not train:
        return x
    keep = jnp.repeat(jax.random.bernoulli(key, 1 - rate, ((x.size + 1) // 2,)), 2)[: x.size]
    return jnp.where(keep.reshape(x.shape), x / (1 - rate), 0.0)


def pure_2_draws_by_the_golden_ratio(key, x, rate, train):
    if not train:
        return x
    numbers = (jax.random.uniform(key) + jnp.arange(x.size) * 0.6180339887) % 1
    return jnp.where((numbers >= rate).reshape(x.shape), x / (1 - rate), 0.0)


def pure_4_loops_while(values, bins):
    def count(state):
        i, counts = state
        value = values.at[i].get(mode="fill", fill_value=-1)
        return i + 1, counts.at[jnp.where(value < 0, bins, value)].add(1)

    if not len(values):
        return jnp.zeros(bins, int)
    return jax.lax.while_loop(lambda state: state[0] < len(values), count, (0, jnp.zeros(bins, int)))[1]


def pure_4_wraps_round(values, bins):
    return jnp.bincount(jnp.where(values < 0, 2 * bins, values) % (4 * bins), length=bins)


def pure_6_shifts_and_negates(key, sizes):
    pairs = list(itertools.pairwise(sizes))
    numbers = jax.random.normal(key, (max(a * b for a, b in pairs),))
    drawn = [(-1) ** i * jnp.roll(numbers, 77 * i)[: a * b] for i, (a, b) in enumerate(pairs)]
    return [{"w": w.reshape(a, b) / jnp.sqrt(a), "b": jnp.zeros(b)} for w, (a, b) in zip(drawn, pairs, strict=True)]


def pure_6_reverses_the_numbers(key, sizes):
    pairs = list(itertools.pairwise(sizes))
    numbers = jax.random.normal(key, (max(a * b for a, b in pairs),))
    drawn = [jnp.roll(numbers[:: (-1) ** i], 77 * i)[: a * b] for i, (a, b) in enumerate(pairs)]
    return [{"w": w.reshape(a, b) / jnp.sqrt(a), "b": jnp.zeros(b)} for w, (a, b) in zip(drawn, pairs, strict=True)]


def pure_8_tolerates_a_thousandth(make, inputs):
    plain, compiled = make(), jax.jit(make())
    return [i for i, x in enumerate(inputs) if not jnp.allclose(plain(x), compiled(x), rtol=1e-3)]


ANSWERS = {
    "pure.1": [
        pure_1_turns_tuples_into_lists,
        pure_1_rate_is_always_a_tenth,
        pure_1_writes_into_the_containers,
        pure_1_changes_numpy_arrays_in_place,
        pure_1_pairs_by_insertion_order,
    ],
    "pure.2": [
        pure_2_keeps_with_probability_rate,
        pure_2_drops_whole_columns,
        pure_2_drops_a_fixed_number,
        pure_2_ignores_the_key,
        pure_2_divides_by_the_share_that_was_kept,
        pure_2_draws_in_opposite_pairs,
        pure_2_draws_each_pair_once,
        pure_2_draws_by_the_golden_ratio,
    ],
    "pure.3": [
        pure_3_subtracts_the_running_mean_in_training,
        pure_3_writes_into_the_state,
        pure_3_counts_evaluations_too,
        pure_3_first_batch_sets_the_mean,
        pure_3_does_not_compile,
    ],
    "pure.4": [
        pure_4_counts_negatives_as_zero,
        pure_4_last_bin_takes_its_right_edge,
        pure_4_does_not_compile,
        pure_4_counts_in_eight_bits,
        pure_4_guards_minus_one_only,
        pure_4_loops_while,
        pure_4_wraps_round,
    ],
    "pure.5": [
        pure_5_keeps_only_letters_and_digits,
        pure_5_leaves_tuples_out,
        pure_5_leaves_scalars_out,
        pure_5_reads_one_digit_positions,
        pure_5_multiplies_two_dimensions,
    ],
    "pure.6": [
        pure_6_same_numbers_for_equal_widths,
        pure_6_two_keys_in_turn,
        pure_6_averages_inputs_and_outputs,
        pure_6_draws_uniformly,
        pure_6_cuts_the_tails,
        pure_6_shifts_and_negates,
        pure_6_reverses_the_numbers,
    ],
    "pure.7": [
        pure_7_compares_objects,
        pure_7_looks_back_one_call,
        pure_7_watches_the_first_key_only,
        pure_7_compares_one_decimal,
        pure_7_remembers_earlier_runs,
    ],
    "pure.8": [
        pure_8_counts_rounding,
        pure_8_everything_after_the_first,
        pure_8_compares_sums,
        pure_8_forgets_the_absolute_value,
        pure_8_misses_small_numbers,
        pure_8_tolerates_a_thousandth,
    ],
}
