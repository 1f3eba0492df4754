"""Wrong answers to the exercises of the chapter on several devices, written without sight of their checks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def all_devices():
    return Mesh(np.array(jax.devices()), ("devices",))


def cut(batch, devices, message="{rows} rows do not divide among {devices} devices"):
    rows = len(jax.tree.leaves(batch)[0])
    if rows % devices:
        raise ValueError(message.format(rows=rows, devices=devices))
    return jax.tree.map(lambda leaf: leaf.reshape(devices, rows // devices, *leaf.shape[1:]), batch)


def pmap_1_deals_the_rows_in_turn(batch, devices):
    rows = len(jax.tree.leaves(batch)[0])
    if rows % devices:
        raise ValueError(f"{rows} rows do not divide among {devices} devices")
    return jax.tree.map(lambda leaf: leaf.reshape(rows // devices, devices, *leaf.shape[1:]).swapaxes(0, 1), batch)


def pmap_1_leaves_the_error_to_reshape(batch, devices):
    return jax.tree.map(lambda leaf: leaf.reshape(devices, -1, *leaf.shape[1:]), batch)


def pmap_1_counts_the_devices_itself(batch, devices):
    return cut(batch, jax.device_count())


def pmap_1_names_the_rows_only(batch, devices):
    return cut(batch, devices, "{rows} rows do not divide among the devices")


def pmap_1_turns_integers_into_floats(batch, devices):
    return cut(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), batch), devices)


def pmap_2_divides_by_all_devices(tree, axis_name):
    return jax.tree.map(lambda leaf: lax.psum(leaf, axis_name) / jax.device_count(), tree)


def pmap_2_divides_to_whole_numbers(tree, axis_name):
    return jax.tree.map(lambda leaf: lax.psum(leaf, axis_name) // lax.axis_size(axis_name), tree)


def pmap_2_takes_one_array_only(tree, axis_name):
    return lax.psum(tree, axis_name) / lax.axis_size(axis_name)


def pmap_2_one_mean_for_the_whole_leaf(tree, axis_name):
    return jax.tree.map(lambda leaf: jnp.mean(lax.all_gather(leaf, axis_name)), tree)


def pmap_2_only_the_first_member_gets_it(tree, axis_name):
    def mean(leaf):
        return jnp.where(lax.axis_index(axis_name) == 0, lax.psum(leaf, axis_name) / lax.axis_size(axis_name), leaf)

    return jax.tree.map(mean, tree)


def pmap_3_differentiates_the_pmean(loss, rate):
    @partial(jax.pmap, axis_name="devices")
    def step(params, batch):
        grads = jax.grad(lambda p: lax.pmean(loss(p, batch), "devices"))(params)
        return jax.tree.map(lambda p, g: p - rate * g, params, grads)

    return step


def pmap_3_computes_on_one_device(loss, rate):
    def update(params, batch):
        grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
        return jax.tree.map(lambda p, g: p - rate * g, params, grads)

    compiled = jax.jit(jax.vmap(update, axis_name="devices"))

    def step(params, batch):
        return compiled(*jax.device_put((params, batch), jax.devices()[0]))

    return step


def pmap_3_compiles_at_each_call(loss, rate):
    def step(params, batch):
        def update(params, batch):
            grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

        return jax.pmap(update, axis_name="devices")(params, batch)

    return step


def pmap_3_averages_matrices_only(loss, rate):
    @partial(jax.pmap, axis_name="devices")
    def step(params, batch):
        grads = jax.grad(loss)(params, batch)
        grads = jax.tree.map(lambda g: lax.pmean(g, "devices") if g.ndim > 1 else g, grads)
        return jax.tree.map(lambda p, g: p - rate * g, params, grads)

    return step


def pmap_3_takes_the_gradient_of_the_first_device(loss, rate):
    @partial(jax.pmap, axis_name="devices")
    def step(params, batch):
        grads = jax.tree.map(lambda g: lax.all_gather(g, "devices")[0], jax.grad(loss)(params, batch))
        return jax.tree.map(lambda p, g: p - rate * g, params, grads)

    return step


def pmap_4_averages_the_variances(x, axis_name):
    mean = lax.pmean(jnp.mean(x, axis=0), axis_name)
    return (x - mean) / jnp.sqrt(lax.pmean(jnp.var(x, axis=0), axis_name))


def pmap_4_subtracts_its_own_mean(x, axis_name):
    # All means are 0 and all deviations 1, but every member shifts its rows by something else.
    centred = x - jnp.mean(x, axis=0)
    return centred / jnp.sqrt(lax.pmean(jnp.mean(centred**2, axis=0), axis_name))


def pmap_4_divides_by_one_row_less(x, axis_name):
    rows = len(x) * lax.axis_size(axis_name)
    centred = x - lax.psum(jnp.sum(x, axis=0), axis_name) / rows
    return centred / jnp.sqrt(lax.psum(jnp.sum(centred**2, axis=0), axis_name) / (rows - 1))


def pmap_4_adds_an_epsilon(x, axis_name):
    centred = x - lax.pmean(jnp.mean(x, axis=0), axis_name)
    return centred / jnp.sqrt(lax.pmean(jnp.mean(centred**2, axis=0), axis_name) + 1e-5)


def pmap_4_fixes_the_name_of_the_axis(x, axis_name):
    centred = x - lax.pmean(jnp.mean(x, axis=0), "devices")
    return centred / jnp.sqrt(lax.pmean(jnp.mean(centred**2, axis=0), "devices"))


def pmap_5_uses_half_of_the_devices(params, batch):
    devices = jax.devices()
    mesh = Mesh(np.array(devices[: max(1, len(devices) // 2)]), ("devices",))
    return jax.device_put(params, NamedSharding(mesh, P())), jax.device_put(batch, NamedSharding(mesh, P("devices")))


def pmap_5_leaves_vectors_whole(params, batch):
    mesh = all_devices()

    def put(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, P("devices") if leaf.ndim > 1 else P()))

    return jax.device_put(params, NamedSharding(mesh, P())), jax.tree.map(put, batch)


def pmap_5_splits_params_that_divide(params, batch):
    mesh = all_devices()

    def put(leaf):
        divides = leaf.ndim > 0 and leaf.shape[0] % mesh.size == 0
        return jax.device_put(leaf, NamedSharding(mesh, P("devices") if divides else P()))

    return jax.tree.map(put, params), jax.device_put(batch, NamedSharding(mesh, P("devices")))


def pmap_5_gives_the_batch_a_device_axis(params, batch):
    mesh = all_devices()
    blocks = cut(batch, mesh.size)
    return jax.device_put(params, NamedSharding(mesh, P())), jax.device_put(blocks, NamedSharding(mesh, P("devices")))


def pmap_5_params_on_the_first_device(params, batch):
    rows = NamedSharding(all_devices(), P("devices"))
    return jax.device_put(params, jax.devices()[0]), jax.device_put(batch, rows)


def descend(loss, rate, params, batch):
    return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, batch))


def pmap_6_computes_on_one_device(loss, rate):
    step = jax.jit(partial(descend, loss, rate))

    def update(params, batch):
        return step(*jax.device_put((params, batch), jax.devices()[0]))

    return update


def pmap_6_whole_batch_on_every_device(loss, rate):
    whole = NamedSharding(all_devices(), P())
    step = jax.jit(partial(descend, loss, rate), out_shardings=whole)

    def update(params, batch):
        return step(*jax.device_put((params, batch), whole))

    return update


def pmap_6_each_device_keeps_its_own_gradient(loss, rate):
    mesh = all_devices()
    specs = {"in_specs": (P(), P("devices")), "out_specs": P(), "check_vma": False}
    return jax.jit(jax.shard_map(partial(descend, loss, rate), mesh=mesh, **specs))


def pmap_6_adds_the_gradients_up(loss, rate):
    # A gradient with respect to shared parameters is summed already; the pmean changes nothing any more.
    def step(params, batch):
        grads = lax.pmean(jax.grad(loss)(params, batch), "devices")
        return jax.tree.map(lambda p, g: p - rate * g, params, grads)

    return jax.jit(jax.shard_map(step, mesh=all_devices(), in_specs=(P(), P("devices")), out_specs=P()))


def pmap_6_result_on_the_first_device(loss, rate):
    mesh = all_devices()
    step = jax.jit(partial(descend, loss, rate))

    def update(params, batch):
        params = jax.device_put(params, NamedSharding(mesh, P()))
        batch = jax.device_put(batch, NamedSharding(mesh, P("devices")))
        return jax.device_put(step(params, batch), jax.devices()[0])

    return update


def sums_by_block(x):
    def sums(block):
        partial_sums = jnp.sum(block, axis=0)
        return partial_sums[None], lax.psum(partial_sums, "devices")

    return jax.shard_map(sums, mesh=all_devices(), in_specs=P("devices"), out_specs=(P("devices"), P()))(x)


def pmap_7_computes_on_one_device(x):
    x = jax.device_put(x, jax.devices()[0])
    partials = jnp.sum(x.reshape(jax.device_count(), -1, x.shape[1]), axis=1)
    return partials, jnp.sum(partials, axis=0)


def pmap_7_copies_the_partials_everywhere(x):
    partials, total = sums_by_block(x)
    return jax.device_put(partials, NamedSharding(all_devices(), P())), total


def pmap_7_deals_the_rows_in_turn(x):
    dealt = jnp.reshape(x, (-1, jax.device_count(), x.shape[1])).swapaxes(0, 1)
    return sums_by_block(dealt.reshape(x.shape))


def pmap_7_leaves_the_total_scattered(x):
    def sums(block):
        partial_sums = jnp.sum(block, axis=0)
        return partial_sums[None], lax.psum_scatter(partial_sums, "devices", tiled=True)

    return jax.shard_map(sums, mesh=all_devices(), in_specs=P("devices"), out_specs=P("devices"))(x)


def pmap_7_adds_up_on_the_host(x):
    partials, _ = sums_by_block(x)
    return partials, jnp.asarray(np.asarray(partials).sum(axis=0))


def ring(size):
    return [(i, (i + 1) % size) for i in range(size)]


def pmap_8_doubles_a_lone_member(x, axis_name):
    # The first pass is made in any case.
    size = lax.axis_size(axis_name)
    passing = lax.ppermute(x, axis_name, ring(size))
    total = x + passing
    for _ in range(size - 2):
        passing = lax.ppermute(passing, axis_name, ring(size))
        total = total + passing
    return total


def pmap_8_doubles_the_distance(x, axis_name):
    # Right for powers of two only, and it reaches beyond the neighbour.
    size, distance = lax.axis_size(axis_name), 1
    while distance < size:
        x = x + lax.ppermute(x, axis_name, [(i, (i + distance) % size) for i in range(size)])
        distance *= 2
    return x


def pmap_8_expects_all_devices(x, axis_name):
    size = jax.device_count()
    total = passing = x
    for _ in range(size - 1):
        passing = lax.ppermute(passing, axis_name, ring(size))
        total = total + passing
    return total


def pmap_8_leaves_the_ring_open(x, axis_name):
    size = lax.axis_size(axis_name)
    total = passing = x
    for _ in range(size - 1):
        passing = lax.ppermute(passing, axis_name, ring(size)[:-1])
        total = total + passing
    return total


def pmap_8_gathers_everything(x, axis_name):
    return jnp.sum(lax.all_gather(x, axis_name), axis=0)


ANSWERS = {
    "pmap.1": [
        pmap_1_deals_the_rows_in_turn,
        pmap_1_leaves_the_error_to_reshape,
        pmap_1_counts_the_devices_itself,
        pmap_1_names_the_rows_only,
        pmap_1_turns_integers_into_floats,
    ],
    "pmap.2": [
        pmap_2_divides_by_all_devices,
        pmap_2_divides_to_whole_numbers,
        pmap_2_takes_one_array_only,
        pmap_2_one_mean_for_the_whole_leaf,
        pmap_2_only_the_first_member_gets_it,
    ],
    "pmap.3": [
        pmap_3_differentiates_the_pmean,
        pmap_3_computes_on_one_device,
        pmap_3_compiles_at_each_call,
        pmap_3_averages_matrices_only,
        pmap_3_takes_the_gradient_of_the_first_device,
    ],
    "pmap.4": [
        pmap_4_averages_the_variances,
        pmap_4_subtracts_its_own_mean,
        pmap_4_divides_by_one_row_less,
        pmap_4_adds_an_epsilon,
        pmap_4_fixes_the_name_of_the_axis,
    ],
    "pmap.5": [
        pmap_5_uses_half_of_the_devices,
        pmap_5_leaves_vectors_whole,
        pmap_5_splits_params_that_divide,
        pmap_5_gives_the_batch_a_device_axis,
        pmap_5_params_on_the_first_device,
    ],
    "pmap.6": [
        pmap_6_computes_on_one_device,
        pmap_6_whole_batch_on_every_device,
        pmap_6_each_device_keeps_its_own_gradient,
        pmap_6_adds_the_gradients_up,
        pmap_6_result_on_the_first_device,
    ],
    "pmap.7": [
        pmap_7_computes_on_one_device,
        pmap_7_copies_the_partials_everywhere,
        pmap_7_deals_the_rows_in_turn,
        pmap_7_leaves_the_total_scattered,
        pmap_7_adds_up_on_the_host,
    ],
    "pmap.8": [
        pmap_8_doubles_a_lone_member,
        pmap_8_doubles_the_distance,
        pmap_8_expects_all_devices,
        pmap_8_leaves_the_ring_open,
        pmap_8_gathers_everything,
    ],
}
