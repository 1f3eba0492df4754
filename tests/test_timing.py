import time

import jax
import jax.numpy as jnp
import pytest

from tpulab.timing import Timing, measure, seconds_text


def test_first_call_is_kept_apart():
    calls = []

    def slow_at_first(x):
        time.sleep(0.05 if not calls else 0.001)
        calls.append(x)

    timing = measure(slow_at_first, 1, runs=7)
    assert len(calls) == 8
    assert timing.first_s >= 0.05
    assert 0.001 <= timing.low_s <= timing.median_s <= timing.high_s < timing.first_s
    assert timing.runs == 7


def test_waits_for_the_result():
    class Slow:
        waited = 0

        def block_until_ready(self):
            Slow.waited += 1
            return self

    measure(Slow, runs=3)
    assert Slow.waited == 4


def test_number_of_runs_follows_the_budget():
    assert measure(time.sleep, 0.01, budget_s=0.05).runs in (3, 4, 5)
    assert measure(lambda: None, budget_s=0.01).runs == 200
    assert measure(time.sleep, 0.02, budget_s=0.0).runs == 3


def test_keyword_arguments_reach_the_function():
    seen = {}
    measure(lambda **kwargs: seen.update(kwargs), runs=1, scale=3)
    assert seen == {"scale": 3}


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, jax.make_jaxpr])
def test_refuses_inside_a_traced_function(transform):
    def body(x):
        measure(jnp.sin, x)
        return jnp.sum(x)

    x = jnp.ones(()) if transform is jax.grad else jnp.ones(3)
    with pytest.raises(TypeError, match="while a function is being traced"):
        transform(body)(x)


def test_refuses_where_only_the_result_is_traced():
    def body(x):
        measure(lambda: x + 1)
        return x

    with pytest.raises(TypeError, match=r"call it outside: measure\(jax.jit\(f\), x\)"):
        jax.jit(body)(1.0)


def test_runs_below_one():
    with pytest.raises(ValueError, match="`runs` is at least 1; got 0"):
        measure(lambda: None, runs=0)


def test_text_says_measured_and_on_what():
    text = repr(Timing(0.00123, 0.001, 0.002, 0.5, 20, "TPU v5 lite"))
    assert text == ("1.23 ms median of 20 runs, middle half 1 ms to 2 ms; first call 500 ms (measured, TPU v5 lite)")


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.5 s"), (1e-3, "1 ms"), (3e-10, "0.3 ns"), (0.0, "0 ns")])
def test_seconds_text(seconds, text):
    assert seconds_text(seconds) == text
