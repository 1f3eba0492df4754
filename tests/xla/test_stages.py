"""Pass by pass: the stages in which a program changed, and who made which fusion."""

import jax
import jax.numpy as jnp
import pytest

from tpulab.xla import CompilerMissing, passes, recorded, stages

ARGS = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 512), (512, 512), (512,)))


def layer(x, w, b):
    return jax.nn.relu(x @ w + b)


@pytest.mark.usefixtures("needs_compiler")
def test_the_fusion_pass_makes_the_fusion():
    found = passes("v5e", layer, *ARGS)
    maker = next(stage for stage in found if stage.made)
    assert maker.after == "tpu_fusion" and maker.pipeline == "Main_fusion"
    assert {"convolution", "add", "maximum"} <= set(maker.made[0].opcodes)
    assert found[0].fusions == 0 and found[-1].fusions > 0
    assert found[-1].operations < found[0].operations and found[-1].hbm_bytes < found[0].hbm_bytes / 3
    assert [stage.number for stage in found] == sorted({stage.number for stage in found})


@pytest.mark.usefixtures("needs_compiler")
def test_what_was_recorded_is_shown_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("TPULAB_RECORD_COMPILED", str(tmp_path))
    found = passes("v5e", layer, *ARGS)
    monkeypatch.setattr(recorded, "STORED", tmp_path)

    def missing():
        raise CompilerMissing("none here")

    monkeypatch.setattr(stages.pair, "prepare", missing)
    assert passes("v5e", layer, *ARGS) == found
    with pytest.raises(CompilerMissing, match="none here; no result of layer with these arguments is stored"):
        passes("v6e", layer, *ARGS)


def test_this_machine():
    found = passes("here", layer, *ARGS)
    assert found[0].pipeline == "input" and any(stage.made for stage in found)
    lines = repr(found).splitlines()
    assert lines[0].split() == ["stage", "pipeline", "after", "operations", "fusions", "MB", "made"]
    assert len(lines) == len(found) + 1
    assert found._repr_html_().count("<tr>") == len(lines)
