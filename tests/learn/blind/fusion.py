"""Wrong answers to the exercises of the chapter on fusion, written without sight of their checks."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
DMA = ("copy-start", "copy-done", "async-start", "async-done")


def fusion_1_keeps_what_moves_in_the_background(instructions):
    return [one.name for one in instructions if one.opcode not in FREE]


def fusion_1_searches_in_a_text(instructions):
    # "copy" is part of it, too.
    silent = "parameter constant tuple get-tuple-element bitcast copy-start copy-done async-start async-done"
    return [one.name for one in instructions if one.opcode not in silent]


def fusion_1_looks_at_the_first_letters(instructions):
    # A bitcast-convert computes.
    return [one.name for one in instructions if not one.opcode.startswith((*FREE, "copy-", "async-"))]


def fusion_1_drops_every_start_and_done(instructions):
    # So it drops all-reduce-start, too.
    return [one.name for one in instructions if one.opcode not in FREE and not one.opcode.endswith(("-start", "-done"))]


def fusion_1_gives_opcodes(instructions):
    return [one.opcode for one in instructions if one.opcode not in FREE + DMA]


def fusion_1_judges_by_name(instructions):
    return [one.name for one in instructions if one.name.split(".")[0] not in FREE + DMA]


def fusion_1_in_order_of_the_alphabet(instructions):
    return sorted({one.name for one in instructions if one.opcode not in FREE + DMA})


def fusion_2_counts_numbers(m, k, n):
    fused = m * k + k * n + n + m * n
    return fused + 4 * m * n, fused


def fusion_2_each_intermediate_crosses_once(m, k, n):
    fused = 2 * (m * k + k * n + n + m * n)
    return fused + 4 * m * n, fused


def fusion_2_three_times_as_much(m, k, n):
    fused = 2 * (m * k + k * n + n + m * n)
    return 3 * fused, fused


def fusion_2_forgets_the_result(m, k, n):
    fused = 2 * (m * k + k * n + n)
    return fused + 8 * m * n, fused


def fusion_2_forgets_the_weights(m, k, n):
    fused = 2 * (m * k + n + m * n)
    return fused + 8 * m * n, fused


def fusion_2_result_as_large_as_the_input(m, k, n):
    fused = 2 * (m * k + k * n + n + m * k)
    return fused + 8 * m * k, fused


def fusion_2_four_bytes_between_the_kernels(m, k, n):
    fused = 2 * (m * k + k * n + n + m * n)
    return fused + 16 * m * n, fused


def fusion_3_largest_of_each_column(x, w, b):
    return jnp.maximum(x @ w + b, 0).max(axis=0)


def fusion_3_forgets_the_maximum_with_zero(x, w, b):
    return (x @ w + b).max(axis=1)


def fusion_3_adds_the_largest_bias(x, w, b):
    return jnp.maximum((x @ w).max(axis=1) + b.max(), 0)


def fusion_3_keeps_the_axis(x, w, b):
    return jnp.maximum(x @ w + b, 0).max(axis=1, keepdims=True)


def fusion_3_looks_up_the_place_of_the_largest(x, w, b):
    h = jnp.maximum(x @ w + b, 0)
    return jnp.take_along_axis(h, jnp.argmax(h, axis=1)[:, None], axis=1)[:, 0]


def fusion_3_keeps_the_layer_apart(x, w, b):
    return lax.optimization_barrier(jnp.maximum(x @ w + b, 0)).max(axis=1)


def fusion_3_in_numpy(x, w, b):
    return np.maximum(np.asarray(x) @ np.asarray(w) + np.asarray(b), 0).max(axis=1)


def fusion_4_looks_up_row_by_row(a, table, group):
    return jax.vmap(lambda row, g: jnp.maximum(row + table[g], 0))(a, group)


def fusion_4_product_in_float32(a, table, group):
    # Not in the dtype of `a` where that is bfloat16.
    return jnp.maximum(a + jax.nn.one_hot(group, 16, dtype=jnp.float32) @ table, 0)


def fusion_4_product_apart(a, table, group):
    rows = lax.optimization_barrier(jax.nn.one_hot(group, 16, dtype=a.dtype) @ table)
    return jnp.maximum(a + rows.astype(a.dtype), 0)


def fusion_4_cuts_off_before_it_adds(a, table, group):
    return (a + jax.nn.one_hot(group, 16, dtype=a.dtype) @ jnp.maximum(table, 0)).astype(a.dtype)


def fusion_4_leaves_out_the_last_group(a, table, group):
    return jnp.maximum(a + jax.nn.one_hot(group, 15, dtype=a.dtype) @ table[:15], 0).astype(a.dtype)


def fusion_4_counts_groups_from_one(a, table, group):
    return jnp.maximum(a + jax.nn.one_hot(group - 1, 16, dtype=a.dtype) @ table, 0).astype(a.dtype)


def fusion_4_group_after_group(a, table, group):
    def add(g, total):
        return total + jnp.where((group == g)[:, None], table[g], 0).astype(a.dtype)

    return jnp.maximum(lax.fori_loop(0, 16, add, a), 0)


def fusion_5_any_memory(program):
    edges = [edge for edge in program.edges if edge.source and edge.target]
    return max(edges, key=lambda edge: edge.bytes).target if edges else None


def fusion_5_anything_but_vmem(program):
    # There are other spaces than these two.
    edges = [edge for edge in program.edges if edge.source and edge.target and edge.space != "VMEM"]
    return max(edges, key=lambda edge: edge.bytes).target if edges else None


def fusion_5_arguments_too(program):
    edges = [edge for edge in program.edges if edge.target and edge.space == "HBM"]
    return max(edges, key=lambda edge: edge.bytes).target if edges else None


def fusion_5_results_too(program):
    edges = [edge for edge in program.edges if edge.source and edge.space == "HBM"]
    return max(edges, key=lambda edge: edge.bytes).target if edges else None


def fusion_5_raises_where_there_is_none(program):
    edges = [edge for edge in program.edges if edge.source and edge.target and edge.space == "HBM"]
    return max(edges, key=lambda edge: edge.bytes).target


def fusion_5_sums_over_what_a_kernel_reads(program):
    # Two values of middling size are not the largest value.
    sums = {}
    for edge in program.edges:
        if edge.source and edge.target and edge.space == "HBM":
            sums[edge.target] = sums.get(edge.target, 0) + edge.bytes
    return max(sums, key=sums.get) if sums else None


def fusion_5_first_that_it_finds(program):
    return next((e.target for e in program.edges if e.source and e.target and e.space == "HBM"), None)


def fusion_6_asks_for_the_variance(x):
    wide = x.astype(jnp.float32)
    y = (wide - wide.mean(1, keepdims=True)) * lax.rsqrt(wide.var(1, keepdims=True) + 1e-6)
    return y.astype(x.dtype)


def fusion_6_result_in_float32(x):
    x = x.astype(jnp.float32)
    mean, square = x.mean(1, keepdims=True), (x * x).mean(1, keepdims=True)
    return (x - mean) * lax.rsqrt(square - mean * mean + 1e-6)


def fusion_6_square_not_less_the_mean(x):
    wide = x.astype(jnp.float32)
    mean, square = wide.mean(1, keepdims=True), (wide * wide).mean(1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(square + 1e-6)).astype(x.dtype)


def fusion_6_without_the_small_number(x):
    # A row of equal numbers gives NaN.
    wide = x.astype(jnp.float32)
    mean, square = wide.mean(1, keepdims=True), (wide * wide).mean(1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(square - mean * mean)).astype(x.dtype)


def fusion_6_small_number_outside_the_root(x):
    wide = x.astype(jnp.float32)
    mean, square = wide.mean(1, keepdims=True), (wide * wide).mean(1, keepdims=True)
    return ((wide - mean) / (jnp.sqrt(jnp.maximum(square - mean * mean, 0)) + 1e-6)).astype(x.dtype)


def fusion_6_guesses_from_the_first_columns(x):
    # Reads even less, but is right for narrow matrices only.
    wide = x.astype(jnp.float32)
    part = wide[:, :1024]
    mean, square = part.mean(1, keepdims=True), (part * part).mean(1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(square - mean * mean + 1e-6)).astype(x.dtype)


def fusion_6_divides_by_one_less(x):
    wide, n = x.astype(jnp.float32), x.shape[1]
    mean, square = wide.mean(1, keepdims=True), (wide * wide).mean(1, keepdims=True)
    return ((wide - mean) * lax.rsqrt((square - mean * mean) * (n / (n - 1)) + 1e-6)).astype(x.dtype)


def array_bytes(var):
    return math.prod(var.aval.shape) * var.aval.dtype.itemsize if var.aval.shape else 0


def fusion_7_an_input_that_occurs_twice_counts_once(f, *args):
    total = 0
    for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns:
        inputs = {id(v): v for v in eqn.invars}
        total += sum(map(array_bytes, [*inputs.values(), *eqn.outvars]))
    return total


def fusion_7_four_bytes_a_number(f, *args):
    total = 0
    for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns:
        total += sum(4 * math.prod(v.aval.shape) for v in [*eqn.invars, *eqn.outvars] if v.aval.shape)
    return total


def fusion_7_single_numbers_count(f, *args):
    total = 0
    for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns:
        total += sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in [*eqn.invars, *eqn.outvars])
    return total


def fusion_7_arrays_of_one_number_count_nothing(f, *args):
    total = 0
    for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns:
        total += sum(array_bytes(v) for v in [*eqn.invars, *eqn.outvars] if math.prod(v.aval.shape) > 1)
    return total


def fusion_7_leaves_out_what_nobody_reads(f, *args):
    # A kernel writes it all the same.
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    used = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    total = 0
    for eqn in jaxpr.eqns:
        total += sum(map(array_bytes, eqn.invars)) + sum(array_bytes(v) for v in eqn.outvars if id(v) in used)
    return total


def fusion_7_leaves_out_captured_arrays(f, *args):
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    captured = {id(v) for v in jaxpr.constvars}
    total = 0
    for eqn in jaxpr.eqns:
        total += sum(array_bytes(v) for v in [*eqn.invars, *eqn.outvars] if id(v) not in captured)
    return total


def fusion_7_asks_the_compiler(f, *args):
    return int(jax.jit(f).lower(*args).compile().cost_analysis()["bytes accessed"])


def pairs(stages):
    return itertools.pairwise(stages)


def fusion_8_fewer_count_too(stages):
    return [(b.name, b.fusions - a.fusions) for a, b in pairs(stages) if a.fusions != b.fusions]


def fusion_8_each_name_once(stages):
    found = {b.name: b.fusions - a.fusions for a, b in pairs(stages) if b.fusions > a.fusions}
    return list(found.items())


def fusion_8_sums_by_name(stages):
    found = {}
    for a, b in pairs(stages):
        if b.fusions > a.fusions:
            found[b.name] = found.get(b.name, 0) + b.fusions - a.fusions
    return list(found.items())


def fusion_8_starts_from_none(stages):
    # What is there before any pass was made by none.
    found, before = [], 0
    for stage in stages:
        if stage.fusions > before:
            found.append((stage.name, stage.fusions - before))
        before = stage.fusions
    return found


def fusion_8_more_than_ever_before(stages):
    found, most = [], stages[0].fusions
    for stage in stages[1:]:
        if stage.fusions > most:
            found.append((stage.name, stage.fusions - most))
        most = max(most, stage.fusions)
    return found


def fusion_8_since_the_beginning(stages):
    first = stages[0].fusions
    return [(b.name, b.fusions - first) for a, b in pairs(stages) if b.fusions > a.fusions]


def fusion_8_only_passes_called_fusion(stages):
    return [(b.name, b.fusions - a.fusions) for a, b in pairs(stages) if b.fusions > a.fusions and "fusion" in b.name]


def fusion_9_as_it_was(a, times):
    return lax.fori_loop(0, times, lambda i, a: jnp.tanh(1.5 * a), a)


def fusion_9_two_rounds_at_a_time(a, times):
    return lax.fori_loop(0, times, lambda i, a: jnp.tanh(1.5 * a), a, unroll=2)


def fusion_9_unrolls_up_to_four(a, times):
    if times > 4:
        return lax.fori_loop(0, times, lambda i, a: jnp.tanh(1.5 * a), a)
    for _ in range(times):
        a = jnp.tanh(1.5 * a)
    return a


def fusion_9_one_round_too_few(a, times):
    for _ in range(times - 1):
        a = jnp.tanh(1.5 * a)
    return a


def fusion_9_factor_outside(a, times):
    for _ in range(times):
        a = 1.5 * jnp.tanh(a)
    return a


def fusion_9_with_barriers(a, times):
    for _ in range(times):
        a = lax.optimization_barrier(jnp.tanh(1.5 * a))
    return a


def fusion_9_scans(a, times):
    return lax.scan(lambda a, _: (jnp.tanh(1.5 * a), None), a, length=times)[0]


ANSWERS = {
    "fusion.1": [
        fusion_1_keeps_what_moves_in_the_background,
        fusion_1_searches_in_a_text,
        fusion_1_looks_at_the_first_letters,
        fusion_1_drops_every_start_and_done,
        fusion_1_gives_opcodes,
        fusion_1_judges_by_name,
        fusion_1_in_order_of_the_alphabet,
    ],
    "fusion.2": [
        fusion_2_counts_numbers,
        fusion_2_each_intermediate_crosses_once,
        fusion_2_three_times_as_much,
        fusion_2_forgets_the_result,
        fusion_2_forgets_the_weights,
        fusion_2_result_as_large_as_the_input,
        fusion_2_four_bytes_between_the_kernels,
    ],
    "fusion.3": [
        fusion_3_largest_of_each_column,
        fusion_3_forgets_the_maximum_with_zero,
        fusion_3_adds_the_largest_bias,
        fusion_3_keeps_the_axis,
        fusion_3_looks_up_the_place_of_the_largest,
        fusion_3_keeps_the_layer_apart,
        fusion_3_in_numpy,
    ],
    "fusion.4": [
        fusion_4_looks_up_row_by_row,
        fusion_4_product_in_float32,
        fusion_4_product_apart,
        fusion_4_cuts_off_before_it_adds,
        fusion_4_leaves_out_the_last_group,
        fusion_4_counts_groups_from_one,
        fusion_4_group_after_group,
    ],
    "fusion.5": [
        fusion_5_any_memory,
        fusion_5_anything_but_vmem,
        fusion_5_arguments_too,
        fusion_5_results_too,
        fusion_5_raises_where_there_is_none,
        fusion_5_sums_over_what_a_kernel_reads,
        fusion_5_first_that_it_finds,
    ],
    "fusion.6": [
        fusion_6_asks_for_the_variance,
        fusion_6_result_in_float32,
        fusion_6_square_not_less_the_mean,
        fusion_6_without_the_small_number,
        fusion_6_small_number_outside_the_root,
        fusion_6_guesses_from_the_first_columns,
        fusion_6_divides_by_one_less,
    ],
    "fusion.7": [
        fusion_7_an_input_that_occurs_twice_counts_once,
        fusion_7_four_bytes_a_number,
        fusion_7_single_numbers_count,
        fusion_7_arrays_of_one_number_count_nothing,
        fusion_7_leaves_out_what_nobody_reads,
        fusion_7_leaves_out_captured_arrays,
        fusion_7_asks_the_compiler,
    ],
    "fusion.8": [
        fusion_8_fewer_count_too,
        fusion_8_each_name_once,
        fusion_8_sums_by_name,
        fusion_8_starts_from_none,
        fusion_8_more_than_ever_before,
        fusion_8_since_the_beginning,
        fusion_8_only_passes_called_fusion,
    ],
    "fusion.9": [
        fusion_9_as_it_was,
        fusion_9_two_rounds_at_a_time,
        fusion_9_unrolls_up_to_four,
        fusion_9_one_round_too_few,
        fusion_9_factor_outside,
        fusion_9_with_barriers,
        fusion_9_scans,
    ],
}
