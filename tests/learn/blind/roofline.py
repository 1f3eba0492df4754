"""Wrong answers to the exercises of the chapter on the roofline, written without sight of their checks."""

import itertools
import math

import jax.numpy as jnp
from jax import lax

from tpulab import chips


def roofline_1_one_flop_for_a_multiply_add(m, k, n, width, out_width):
    return m * k * n / (width * (m * k + k * n) + out_width * m * n)


def roofline_1_forgets_the_result(m, k, n, width, out_width):
    return 2 * m * k * n / (width * (m * k + k * n))


def roofline_1_only_the_second_matrix(m, k, n, width, out_width):
    return 2 * m / width


def roofline_1_one_width_for_all(m, k, n, width, out_width):
    return 2 * m * k * n / (width * (m * k + k * n + m * n))


def roofline_1_swaps_the_widths(m, k, n, width, out_width):
    return 2 * m * k * n / (out_width * (m * k + k * n) + width * m * n)


def roofline_1_result_as_large_as_the_input(m, k, n, width, out_width):
    # Right where k is n.
    return 2 * m * k * n / (width * (m * k + k * n) + out_width * m * k)


def roofline_1_whole_number(m, k, n, width, out_width):
    return 2 * m * k * n // (width * (m * k + k * n) + out_width * m * n)


def roofline_2_adds_the_times(flops, hbm_bytes, chip):
    facts = chips.get(chip)
    compute, memory = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s
    return ("compute" if compute > memory else "memory"), compute + memory


def roofline_2_takes_the_shorter_time(flops, hbm_bytes, chip):
    facts = chips.get(chip)
    compute, memory = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s
    return ("compute" if compute > memory else "memory"), min(compute, memory)


def roofline_2_any_chip_is_a_v5e(flops, hbm_bytes, chip):
    facts = chips.get("v5e")
    compute, memory = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s
    return ("compute" if compute > memory else "memory"), max(compute, memory)


def roofline_2_arithmetic_in_int8(flops, hbm_bytes, chip):
    facts = chips.get(chip)
    compute, memory = flops / (facts.int8_ops_per_s or facts.bf16_flops_per_s), hbm_bytes / facts.hbm_bytes_per_s
    return ("compute" if compute > memory else "memory"), max(compute, memory)


def roofline_2_size_for_rate(flops, hbm_bytes, chip):
    facts = chips.get(chip)
    compute, memory = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes
    return ("compute" if compute > memory else "memory"), max(compute, memory)


def roofline_2_compares_flops_with_bytes(flops, hbm_bytes, chip):
    facts = chips.get(chip)
    compute, memory = flops / facts.bf16_flops_per_s, hbm_bytes / facts.hbm_bytes_per_s
    return ("compute" if flops > hbm_bytes else "memory"), max(compute, memory)


def roofline_2_always_arithmetic(flops, hbm_bytes, chip):
    return "compute", flops / chips.get(chip).bf16_flops_per_s


def exact_rows(k, n, flops_per_s, bytes_per_s, width):
    per_row = 2 * k * n / flops_per_s - width * (k + n) / bytes_per_s
    return width * k * n / bytes_per_s / per_row if per_row > 0 else None


def roofline_3_rounds_to_a_multiple_of_128(k, n, flops_per_s, bytes_per_s, width):
    rows = exact_rows(k, n, flops_per_s, bytes_per_s, width)
    return None if rows is None else 128 * math.ceil(rows / 128)


def roofline_3_more_than_memory(k, n, flops_per_s, bytes_per_s, width):
    # One too many where both times are the same.
    rows = exact_rows(k, n, flops_per_s, bytes_per_s, width)
    return None if rows is None else int(rows) + 1


def roofline_3_gives_up_early(k, n, flops_per_s, bytes_per_s, width):
    for rows in range(1, 2000):
        if 2 * rows * k * n / flops_per_s >= width * (rows * k + k * n + rows * n) / bytes_per_s:
            return rows
    return None


def roofline_3_tries_powers_of_two(k, n, flops_per_s, bytes_per_s, width):
    for rows in (2**power for power in range(40)):
        if 2 * rows * k * n / flops_per_s >= width * (rows * k + k * n + rows * n) / bytes_per_s:
            return rows
    return None


def roofline_3_negative_where_none_is_enough(k, n, flops_per_s, bytes_per_s, width):
    per_row = 2 * k * n / flops_per_s - width * (k + n) / bytes_per_s
    return math.ceil(width * k * n / bytes_per_s / per_row)


def roofline_3_forgets_the_result(k, n, flops_per_s, bytes_per_s, width):
    per_row = 2 * k * n / flops_per_s - width * k / bytes_per_s
    return math.ceil(width * k * n / bytes_per_s / per_row) if per_row > 0 else None


def roofline_3_two_bytes_a_number(k, n, flops_per_s, bytes_per_s, width):
    rows = exact_rows(k, n, flops_per_s, bytes_per_s, 2)
    return None if rows is None else math.ceil(rows)


def roofline_4_one_cache_for_all_texts(parameters, width, texts, cache_bytes, count, chip):
    facts = chips.get(chip)
    compute = 2 * parameters * texts / facts.bf16_flops_per_s
    return max(compute, (parameters * width + cache_bytes) / facts.hbm_bytes_per_s) / count


def roofline_4_faster_arithmetic_for_int8(parameters, width, texts, cache_bytes, count, chip):
    facts = chips.get(chip)
    peak = facts.int8_ops_per_s if width == 1 and facts.int8_ops_per_s else facts.bf16_flops_per_s
    compute = 2 * parameters * texts / peak
    return max(compute, (parameters * width + texts * cache_bytes) / facts.hbm_bytes_per_s) / count


def roofline_4_adds_the_times(parameters, width, texts, cache_bytes, count, chip):
    facts = chips.get(chip)
    compute = 2 * parameters * texts / facts.bf16_flops_per_s
    return (compute + (parameters * width + texts * cache_bytes) / facts.hbm_bytes_per_s) / count


def roofline_4_one_flop_for_each_parameter(parameters, width, texts, cache_bytes, count, chip):
    facts = chips.get(chip)
    compute = parameters * texts / facts.bf16_flops_per_s
    return max(compute, (parameters * width + texts * cache_bytes) / facts.hbm_bytes_per_s) / count


def roofline_4_each_chip_keeps_its_own_texts_cache(parameters, width, texts, cache_bytes, count, chip):
    # Only the weights are spread.
    facts = chips.get(chip)
    compute = 2 * parameters * texts / facts.bf16_flops_per_s / count
    return max(compute, (parameters * width / count + texts * cache_bytes) / facts.hbm_bytes_per_s)


def roofline_4_arithmetic_on_one_chip(parameters, width, texts, cache_bytes, count, chip):
    facts = chips.get(chip)
    compute = 2 * parameters * texts / facts.bf16_flops_per_s
    return max(compute, (parameters * width + texts * cache_bytes) / facts.hbm_bytes_per_s / count)


def roofline_4_flops_by_width(parameters, width, texts, cache_bytes, count, chip):
    facts = chips.get(chip)
    compute = 2 * parameters * width * texts / facts.bf16_flops_per_s
    return max(compute, (parameters * width + texts * cache_bytes) / facts.hbm_bytes_per_s) / count


def up(size, multiple):
    return -(-size // multiple) * multiple


def roofline_5_tile_of_8_by_128(shape, width, tile):
    *front, rows, columns = (1, 1, *shape)
    return math.prod(front) * up(rows, 8) * up(columns, 128) * width


def roofline_5_swaps_the_tile(shape, width, tile):
    *front, rows, columns = (1, 1, *shape)
    return math.prod(front) * up(rows, tile[1]) * up(columns, tile[0]) * width


def roofline_5_first_and_last_axis(shape, width, tile):
    shape = (1,) * (2 - len(shape)) + tuple(shape)
    return up(shape[0], tile[0]) * math.prod(shape[1:-1]) * up(shape[-1], tile[1]) * width


def roofline_5_rows_of_all_axes_together(shape, width, tile):
    *front, columns = (1, *shape)
    return up(math.prod(front), tile[0]) * up(columns, tile[1]) * width


def roofline_5_whole_tiles_of_all_numbers(shape, width, tile):
    return up(math.prod(shape), tile[0] * tile[1]) * width


def roofline_5_one_tile_more(shape, width, tile):
    *front, rows, columns = (1, 1, *shape)
    rows, columns = (rows // tile[0] + 1) * tile[0], (columns // tile[1] + 1) * tile[1]
    return math.prod(front) * rows * columns * width


def roofline_5_one_axis_has_no_rows(shape, width, tile):
    if len(shape) < 2:
        return up(math.prod(shape), tile[1]) * width
    *front, rows, columns = shape
    return math.prod(front) * up(rows, tile[0]) * up(columns, tile[1]) * width


def roofline_6_other_way_round(x, y):
    return (y[:, :, :, None] * x[:, None]).sum(2)


def roofline_6_sums_over_the_rows(x, y):
    return (x[:, :, :, None] * y[:, :, None, :]).sum(1)


def roofline_6_writes_all_products(x, y):
    return lax.optimization_barrier(x[:, :, :, None] * y[:, None]).sum(2)


def roofline_6_in_bfloat16(x, y):
    x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    return (x[:, :, :, None] * y[:, None]).sum(2).astype(jnp.float32)


def roofline_6_only_two_terms(x, y):
    return x[:, :, 0, None] * y[:, 0, None, :] + x[:, :, 1, None] * y[:, 1, None, :]


def roofline_6_three_terms(x, y):
    # An index that is too large is clipped when b is 2.
    return sum(x[:, :, i, None] * y[:, i, None, :] for i in range(min(3, x.shape[2])))


def roofline_6_flat_result(x, y):
    return (x[:, :, :, None] * y[:, None]).sum(2).reshape(len(x), -1)


MIB = 2**20


def roofline_7_always_between_the_layers(rows, d, f):
    return 2 * (2 * rows * d + 2 * d * f + 2 * rows * f)


def roofline_7_only_written_between_the_layers(rows, d, f):
    between = 2 * rows * f
    return 2 * (2 * rows * d + 2 * d * f) + (between if between > 32 * MIB else 0)


def roofline_7_four_bytes_between_the_layers(rows, d, f):
    between = 4 * rows * f
    return 2 * (2 * rows * d + 2 * d * f) + (2 * between if between > 64 * MIB else 0)


def roofline_7_more_than_256_mib(rows, d, f):
    # Exactly 256 MiB cross, too.
    between = 2 * rows * f
    return 2 * (2 * rows * d + 2 * d * f) + (2 * between if between > 256 * MIB else 0)


def roofline_7_limit_in_bits(rows, d, f):
    between = 2 * rows * f
    return 2 * (2 * rows * d + 2 * d * f) + (2 * between if 8 * between > 32 * MIB else 0)


def roofline_7_limit_for_the_input(rows, d, f):
    between = 2 * rows * f
    return 2 * (2 * rows * d + 2 * d * f) + (2 * between if 2 * rows * d > 32 * MIB else 0)


def roofline_7_all_but_the_between_stays_too(rows, d, f):
    # Whatever is small is taken to stay in VMEM, arguments too.
    sizes = [2 * rows * d, 2 * d * f, 4 * rows * f, 2 * d * f, 2 * rows * d]
    return sum(size for size in sizes if size > 32 * MIB)


def roofline_8_by_peak(program, old, new):
    return chips.get(new).bf16_flops_per_s / chips.get(old).bf16_flops_per_s


def roofline_8_by_bandwidth(program, old, new):
    return chips.get(new).hbm_bytes_per_s / chips.get(old).hbm_bytes_per_s


def roofline_8_by_the_old_ceiling(program, old, new):
    line = chips.roofline((program.flops, program.hbm_bytes), old)
    field = "bf16_flops_per_s" if line.bound == "compute" else "hbm_bytes_per_s"
    return getattr(chips.get(new), field) / getattr(chips.get(old), field)


def roofline_8_by_the_new_ceiling(program, old, new):
    line = chips.roofline((program.flops, program.hbm_bytes), new)
    field = "bf16_flops_per_s" if line.bound == "compute" else "hbm_bytes_per_s"
    return getattr(chips.get(new), field) / getattr(chips.get(old), field)


def roofline_8_never_slower(program, old, new):
    work = program.flops, program.hbm_bytes
    return max(1.0, chips.roofline(work, old).seconds / chips.roofline(work, new).seconds)


def roofline_8_adds_the_times(program, old, new):
    seconds = []
    for facts in (chips.get(old), chips.get(new)):
        seconds.append(program.flops / facts.bf16_flops_per_s + program.hbm_bytes / facts.hbm_bytes_per_s)
    return seconds[0] / seconds[1]


def roofline_8_smaller_of_both_gains(program, old, new):
    old, new = chips.get(old), chips.get(new)
    peak = new.bf16_flops_per_s / old.bf16_flops_per_s
    return min(peak, new.hbm_bytes_per_s / old.hbm_bytes_per_s)


def roofline_9_best_of_all(estimate, candidates):
    return min(candidates, key=lambda rows: estimate(rows) / rows)


def roofline_9_largest_that_is_good_enough(estimate, candidates):
    best = min(estimate(rows) / rows for rows in candidates)
    return max(rows for rows in candidates if estimate(rows) / rows <= 1.1 * best)


def roofline_9_measured_against_the_most_rows(estimate, candidates):
    # The most rows need not be the best.
    most = max(candidates)
    return min(rows for rows in candidates if estimate(rows) / rows <= 1.1 * estimate(most) / most)


def roofline_9_stops_at_the_first_small_gain(estimate, candidates):
    candidates = sorted(candidates)
    for rows, more in itertools.pairwise(candidates):
        if estimate(rows) / rows <= 1.1 * estimate(more) / more:
            return rows
    return candidates[-1]


def roofline_9_nine_tenths_of_the_rate(estimate, candidates):
    best = max(rows / estimate(rows) for rows in candidates)
    return min(rows for rows in candidates if rows / estimate(rows) >= 0.9 * best)


def roofline_9_a_fifth_more(estimate, candidates):
    best = min(estimate(rows) / rows for rows in candidates)
    return min(rows for rows in candidates if estimate(rows) / rows <= 1.2 * best)


def roofline_9_remembers_nothing_of_order(estimate, candidates):
    # Takes for granted that the list goes upwards.
    best = estimate(candidates[-1]) / candidates[-1]
    return next(rows for rows in candidates if estimate(rows) / rows <= 1.1 * best)


ANSWERS = {
    "roofline.1": [
        roofline_1_one_flop_for_a_multiply_add,
        roofline_1_forgets_the_result,
        roofline_1_only_the_second_matrix,
        roofline_1_one_width_for_all,
        roofline_1_swaps_the_widths,
        roofline_1_result_as_large_as_the_input,
        roofline_1_whole_number,
    ],
    "roofline.2": [
        roofline_2_adds_the_times,
        roofline_2_takes_the_shorter_time,
        roofline_2_any_chip_is_a_v5e,
        roofline_2_arithmetic_in_int8,
        roofline_2_size_for_rate,
        roofline_2_compares_flops_with_bytes,
        roofline_2_always_arithmetic,
    ],
    "roofline.3": [
        roofline_3_rounds_to_a_multiple_of_128,
        roofline_3_more_than_memory,
        roofline_3_gives_up_early,
        roofline_3_tries_powers_of_two,
        roofline_3_negative_where_none_is_enough,
        roofline_3_forgets_the_result,
        roofline_3_two_bytes_a_number,
    ],
    "roofline.4": [
        roofline_4_one_cache_for_all_texts,
        roofline_4_faster_arithmetic_for_int8,
        roofline_4_adds_the_times,
        roofline_4_one_flop_for_each_parameter,
        roofline_4_each_chip_keeps_its_own_texts_cache,
        roofline_4_arithmetic_on_one_chip,
        roofline_4_flops_by_width,
    ],
    "roofline.5": [
        roofline_5_tile_of_8_by_128,
        roofline_5_swaps_the_tile,
        roofline_5_first_and_last_axis,
        roofline_5_rows_of_all_axes_together,
        roofline_5_whole_tiles_of_all_numbers,
        roofline_5_one_tile_more,
        roofline_5_one_axis_has_no_rows,
    ],
    "roofline.6": [
        roofline_6_other_way_round,
        roofline_6_sums_over_the_rows,
        roofline_6_writes_all_products,
        roofline_6_in_bfloat16,
        roofline_6_only_two_terms,
        roofline_6_three_terms,
        roofline_6_flat_result,
    ],
    "roofline.7": [
        roofline_7_always_between_the_layers,
        roofline_7_only_written_between_the_layers,
        roofline_7_four_bytes_between_the_layers,
        roofline_7_more_than_256_mib,
        roofline_7_limit_in_bits,
        roofline_7_limit_for_the_input,
        roofline_7_all_but_the_between_stays_too,
    ],
    "roofline.8": [
        roofline_8_by_peak,
        roofline_8_by_bandwidth,
        roofline_8_by_the_old_ceiling,
        roofline_8_by_the_new_ceiling,
        roofline_8_never_slower,
        roofline_8_adds_the_times,
        roofline_8_smaller_of_both_gains,
    ],
    "roofline.9": [
        roofline_9_best_of_all,
        roofline_9_largest_that_is_good_enough,
        roofline_9_measured_against_the_most_rows,
        roofline_9_stops_at_the_first_small_gain,
        roofline_9_nine_tenths_of_the_rate,
        roofline_9_a_fifth_more,
        roofline_9_remembers_nothing_of_order,
    ],
}
