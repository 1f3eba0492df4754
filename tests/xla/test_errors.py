"""What the compiler says when it refuses, put into one line."""

import pytest

from tpulab.xla import CompileError, CompilerMissing, IndivisibleShape, errors
from tpulab.xla.compiled import Buffer

OUT_OF_HBM = [
    # libtpu 0.0.37 and before; 0.0.42 to 0.0.44; 0.0.50 and later
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 17.00G of 15.75G hbm.",
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (17.00G) exceeds "
    "available HBM (15.75G).",
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (17.00G) exceeds available HBM (15.75G). HLO module: jit_f.\nSee https://openxla.org/...",
]


@pytest.mark.parametrize("message", OUT_OF_HBM)
def test_sizes_are_read_from_every_form(message):
    assert errors.is_out_of_hbm(message)
    assert errors.sizes_in(message) == (17 * 2**30, round(15.75 * 2**30))


def test_vmem_is_no_hbm():
    message = "RESOURCE_EXHAUSTED: Allocation (size=268435456) would exceed memory (size=134217728) ... space=vmem"
    assert not errors.is_out_of_hbm(message)
    assert str(errors.in_one_line(RuntimeError(message))).startswith("RuntimeError: Allocation (size=268435456)")


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        ("INVALID_ARGUMENT: No such compile option: 'xla_foo'", CompileError, "this compiler has no option 'xla_foo'"),
        ("ABORTED: ... multi-process lockfile. Run rm ...", CompilerMissing, "another process has the TPU compiler"),
        ("Received incompatible devices for jitted computation. Got ...", CompileError, "tpulab.xla.mesh_for(target"),
        ("Only interpret mode is supported on CPU backend.", CompileError, "use compile_for"),
        ("x should be evenly divisible by 4.\nmore", IndivisibleShape, "Pad the axis"),
        ("INTERNAL: RET_CHECK failure: something.\nStack trace:\n...", CompileError, "RuntimeError: RET_CHECK failure"),
        ("", CompileError, "RuntimeError"),
    ],
)
def test_refusals(message, kind, words):
    found = errors.in_one_line(RuntimeError(message))
    assert type(found) is kind and words in str(found) and "\n" not in str(found)


def test_buffers_are_listed():
    buffers = [
        Buffer(8 * 2**30, "x.1", "bf16[65536,65536]{1,0:T(8,128)(2,1)}", "argument", "x"),
        Buffer(2**30, "fusion", "bf16[8192,65536]{1,0}", "temporary", ""),
    ]
    error = errors.does_not_fit("v5e:2x2", 16 * 2**30, round(15.75 * 2**30), buffers)
    assert "needs 16.00 GiB of HBM, and 15.75 GiB can be used" in str(error)
    assert "argument bf16[65536,65536] (8.00 GiB, x)" in str(error)
    lines = error.table().splitlines()
    assert [line.split()[0] for line in lines] == ["GiB", "8.00", "1.00"]
    assert lines[1].endswith("x") and lines[2].endswith("fusion")
    assert errors.does_not_fit("v5e", None, None).table().split() == ["GiB", "kind", "shape", "made", "by"]
