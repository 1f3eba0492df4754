"""Wrong answers to the exercises of the start chapter, written without sight of their checks."""

import math

import jax.numpy as jnp
import numpy as np


def start_1_adds_three(x):
    return x + 3.0


def start_1_doubles_the_magnitude(x):
    return 2 * abs(x)


def start_1_numbers_only(x):
    return 2 * float(x)


def start_1_drops_the_fraction(x):
    return 2 * jnp.asarray(x).astype(int)


def start_1_flattens_matrices(x):
    return 2 * jnp.ravel(x) if jnp.ndim(x) else 2 * x


def start_2_uses_the_default_dtype_of_numpy(shapes):
    return sum(math.prod(shape) * np.dtype(float).itemsize for shape in shapes)


def start_2_counts_equal_shapes_once(shapes):
    return sum(4 * math.prod(shape) for shape in set(shapes))


def start_2_takes_scalars_for_empty(shapes):
    return sum(4 * math.prod(shape) if shape else 0 for shape in shapes)


def start_2_reads_two_dimensions(shapes):
    return sum(4 * math.prod(shape[:2]) for shape in shapes)


def start_2_overflows(shapes):
    # 32-bit whole numbers end at 2**31 - 1 bytes.
    return int(4 * sum(jnp.prod(jnp.array(shape, dtype=jnp.int32)) for shape in shapes))


ANSWERS = {
    "start.1": [
        start_1_adds_three,
        start_1_doubles_the_magnitude,
        start_1_numbers_only,
        start_1_drops_the_fraction,
        start_1_flattens_matrices,
    ],
    "start.2": [
        start_2_uses_the_default_dtype_of_numpy,
        start_2_counts_equal_shapes_once,
        start_2_takes_scalars_for_empty,
        start_2_reads_two_dimensions,
        start_2_overflows,
    ],
}
