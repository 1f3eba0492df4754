"""One HLO instruction, as the compiler wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .shape import Shape

FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier", "domain", "add-dependency", "async-update",
})  # fmt: skip

# Custom calls that start nothing: they reserve memory, mark shardings, join buffers, state what is known of indices.
IDLE_CALLS = frozenset({
    "AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "Sharding", "SPMDFullToShardShape",
    "SPMDShardToFullShape", "annotate_device_placement",
})  # fmt: skip

# Of something started early, the part of its shape that holds what it gives.
_GIVEN_AT = {"copy-start": 0, "async-start": 1, "all-gather-start": 1, "collective-permute-start": 1}


class Frame(NamedTuple):
    """One line of the traceback under which JAX recorded an operation."""

    file: str
    function: str
    line: int


class Dot(NamedTuple):
    """Which dimensions of a dot's operands are summed over, and which are batched."""

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]


class Window(NamedTuple):
    """How one dimension of a window moves over its input."""

    size: int
    stride: int
    padding_low: int
    padding_high: int
    window_dilation: int
    base_dilation: int


class Convolution(NamedTuple):
    """Which dimension of a convolution's arrays is what."""

    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]
    feature_groups: int
    batch_groups: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation.

    Args:
        id: unique in its module.
        name: e.g. "fusion.3".
        opcode: e.g. "fusion", "dot", "all-reduce".
        shape: of the result.
        operands: ids, all of the same computation and earlier in it.
        called: ids of computations it calls: of a fusion one, of a while (body, condition).
        fusion_kind: "kLoop", "kInput", "kOutput", "kCustom", or "".
        op_name: the JAX operation with its path, e.g. "jit(layer)/dot_general".
        source_file: the learner's file, or "".
        source_line: 0 when unknown.
        frames: the traceback, innermost first.
        backend_config: JSON of the compiler's own, see `config`.
        literal: value of a scalar whole-number constant.
        dimensions: of a broadcast, reduce, concatenate, transpose …
        sizes: of the slice that a dynamic-slice takes.
        dot: of a dot.
        windows: of a convolution, reduce-window or select-and-scatter.
        convolution: of a convolution.
        parameter_number: of a parameter.
        tuple_index: of a get-tuple-element.
        custom_call_target: of a custom call.
        comparison_direction: "LT", "GE" … of a compare.
        channel_id: of a collective that crosses partitions.
        replica_groups: devices that talk to each other; () when all do, or none.
        source_target_pairs: (from, to) of a collective-permute.
        control_predecessors: ids that must run before it though nothing flows.
        cross_program_prefetch: it is a copy begun before the program.
        async_thread: where an asynchronous call runs, e.g. "sparsecore"; "" for the main thread.
    """

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...] = ()
    called: tuple[int, ...] = ()
    fusion_kind: str = ""
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    frames: tuple[Frame, ...] = ()
    backend_config: str = ""
    literal: int | None = None
    dimensions: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    dot: Dot | None = None
    windows: tuple[Window, ...] = ()
    convolution: Convolution | None = None
    parameter_number: int = 0
    tuple_index: int = 0
    custom_call_target: str = ""
    comparison_direction: str = ""
    channel_id: int = 0
    replica_groups: tuple[tuple[int, ...], ...] = ()
    source_target_pairs: tuple[tuple[int, int], ...] = ()
    control_predecessors: tuple[int, ...] = ()
    cross_program_prefetch: bool = False
    async_thread: str = ""

    @property
    def config(self) -> Mapping[str, Any]:
        """What the compiler says of it, e.g. its estimate of cycles; {} where it says nothing readable."""
        try:
            found = json.loads(self.backend_config) if self.backend_config else {}
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def result(self) -> Shape:
        """What it gives; of something started early, what will be there once it is done."""
        at = _GIVEN_AT.get(self.opcode)
        return self.shape if at is None or at >= len(self.shape.parts) else self.shape.parts[at]

    @property
    def free(self) -> bool:
        """It launches nothing: it names or regroups values, or waits for what was started before."""
        if self.opcode == "custom-call":
            return self.custom_call_target in IDLE_CALLS or self.custom_call_target.startswith("xla.sdy.")
        return self.opcode in FREE or self.opcode.endswith("-done")
