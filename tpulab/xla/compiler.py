"""Compile a function for a TPU that need not be here, or for the machine at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import backend, pair, recorded, topology
from .compiled import Compiled
from .errors import CompilerMissing, DoesNotFit
from .lowering import Call, call_of, has_own_devices, lower
from .target import Target, parse

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from .program import Program

# Passes that fuse, by backend. Not documented by XLA: that switching them off worked is looked up in the result.
_FUSION_PASSES = {"tpu": "tpu_fusion", "cpu": "fusion", "gpu": "fusion"}


def compile_for(
    target: str,
    fn: Callable,
    *args: Any,
    mesh: Mapping[str, int] | Mesh | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    compiler_options: Mapping[str, Any] | None = None,
    fusion: bool = True,
    **kwargs: Any,
) -> Program:
    """Compile a function for a TPU with the real TPU compiler; no TPU need be here.

    Everything said of the result is the compiler's claim, not a measurement. Results are kept on disk, so the
    same program is compiled once.

    Args:
        target: chip and slice shape in chips, e.g. "v5e:2x2"; a chip's name alone is one chip.
        fn: a function, also jitted, a method, a partial or a Flax NNX function.
        *args: what it is called with: arrays, jax.ShapeDtypeStruct, numbers, keys, trees of these. Only
            shapes and types are used.
        mesh: axis names and sizes, e.g. {"data": 2, "model": 2}, or a mesh from `mesh_for`; without one, one
            device of the target.
        in_shardings: one PartitionSpec for all arguments, or a tuple with one for each, each a spec or a tree
            of them that is a prefix of the argument; None: whole on every device.
        out_shardings: the same for results; None leaves them to the compiler.
        static_argnums: as in jax.jit.
        static_argnames: as in jax.jit.
        donate_argnums: as in jax.jit.
        compiler_options: XLA options by name, for those who know them.
        fusion: False switches the compiler's fusion pass off, to see what it is worth.
        **kwargs: keyword arguments of the function.

    Returns:
        The compiled program, per device.

    Raises:
        UnknownTarget: there is no such chip or slice.
        CompilerMissing: no TPU compiler works here, and no stored result of this program is there.
        IndivisibleShape: an array does not divide over the mesh.
        DoesNotFit: the program needs more HBM than a device has.
        CompileError: the compiler refuses for another reason.
        ValueError, TypeError: arguments that do not go together.
    """
    from .reading import from_compiled

    call = call_of(fn, args, kwargs, in_shardings, out_shardings, static_argnums, static_argnames, donate_argnums)
    return from_compiled(compiled_for(target, call, mesh=mesh, compiler_options=compiler_options, fusion=fusion))


def compile_here(
    fn: Callable,
    *args: Any,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    compiler_options: Mapping[str, Any] | None = None,
    fusion: bool = True,
    **kwargs: Any,
) -> Program:
    """Compile a function for this machine: its CPU, or the chip that is here.

    A CPU is another machine than a TPU: what is fused, and how memory is used, differ.

    Args:
        fn: as in `compile_for`.
        *args: as in `compile_for`; arrays that are sharded stay so.
        static_argnums: as in jax.jit.
        static_argnames: as in jax.jit.
        donate_argnums: as in jax.jit.
        compiler_options: XLA options by name.
        fusion: False switches the fusion pass off.
        **kwargs: keyword arguments of the function.

    Returns:
        The compiled program, per device.

    Raises:
        CompileError: the compiler refuses.
        ValueError, TypeError: arguments that do not go together.
    """
    from .reading import from_compiled

    call = call_of(fn, args, kwargs, None, None, static_argnums, static_argnames, donate_argnums)
    return from_compiled(compiled_here(call, compiler_options=compiler_options, fusion=fusion))


def compiled_for(
    target: str | Target,
    call: Call,
    *,
    mesh: Mapping[str, int] | Mesh | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    fusion: bool = True,
) -> Compiled:
    """Do the work of `compile_for`, up to what the compiler gave back."""
    wanted = parse(target)
    options = _options(compiler_options, fusion, "tpu")
    axes = axes_of(wanted, mesh)
    name = recorded.name_of(wanted.name, call, axes, options)
    try:
        pair.prepare()
    except CompilerMissing as missing:
        return recorded.read(name, call, missing)
    over = mesh_over(wanted, mesh, axes)
    lowered, split = lower(call, over)
    try:
        made = backend.compiled(lowered, call, options, target=wanted, devices=over.size)
    except DoesNotFit as error:
        recorded.write_error(name, call, error)
        raise
    if not has_own_devices(call.fn):
        made = _with_notes(made, _place_notes(wanted, axes, over, split))
    if not fusion:
        options = _options(compiler_options, True, "tpu")
        fused = backend.compiled(lowered, call, options, target=wanted, devices=over.size)
        made = _with_notes(made, _fusion_notes(made, fused))
    recorded.write(name, call, made)
    return made


def compiled_here(call: Call, *, compiler_options: Mapping[str, Any] | None = None, fusion: bool = True) -> Compiled:
    """Do the work of `compile_here`, up to what the compiler gave back."""
    import jax

    platform = jax.devices()[0].platform
    lowered, _ = lower(call, None)
    made = backend.compiled(lowered, call, _options(compiler_options, fusion, platform))
    if fusion:
        return made
    fused = backend.compiled(lowered, call, _options(compiler_options, True, platform))
    return _with_notes(made, _fusion_notes(made, fused))


def _options(given: Mapping[str, Any] | None, fusion: bool, platform: str) -> dict[str, Any]:
    """Add the switch that turns fusion off to the options that were given."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"`compiler_options` is a dict of XLA options; got {type(given).__name__}")
    options = dict(given or {})
    if not fusion:
        passes = [str(options.get("xla_disable_hlo_passes") or ""), _FUSION_PASSES.get(platform, "fusion")]
        options["xla_disable_hlo_passes"] = ",".join(filter(None, passes))
    return options


def axes_of(target: Target, mesh: Mapping[str, int] | Mesh | None) -> dict[str, int] | None:
    """Give a mesh's axes, whichever way it came; None for one device."""
    if mesh is None:
        return None
    axes = mesh if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
    return topology.checked_axes(target, dict(axes) if isinstance(axes, Mapping) else axes)  # type: ignore[arg-type]


def mesh_over(target: Target, mesh: Mapping[str, int] | Mesh | None, axes: dict[str, int] | None) -> Mesh:
    """Give the mesh to compile for: the one that was given, one with its axes, or one device."""
    if mesh is not None and not isinstance(mesh, Mapping) and mesh.devices.flat[0].platform == "tpu":
        return mesh
    found = topology.devices(target)
    return topology.build(found[:1], {topology.AXIS_OF_ONE: 1}) if axes is None else topology.build(found, axes)


def _place_notes(target: Target, axes: Mapping[str, int] | None, mesh: Mesh, split: int) -> tuple[str, ...]:
    """Say on what the program runs where the reader might think otherwise."""
    notes = []
    per_chip = target.generation.devices_per_chip
    if axes is None:
        part = "one device, half a chip" if per_chip == 2 else "one chip"
        if target.devices > 1:
            notes.append(f"for {part} of {target.name}; give mesh= to use more of its {target.devices} devices")
    elif mesh.size < target.devices:
        notes.append(f"the mesh uses {mesh.size} of the {target.devices} devices of {target.name}")
    if axes is not None and mesh.size > 1 and not split:
        notes.append(
            f"no argument is split: every one of the {mesh.size} devices holds all of them and, unless the function "
            "says otherwise, does the same work; give in_shardings="
        )
    return tuple(notes)


def _fusion_notes(made: Compiled, fused: Compiled) -> tuple[str, ...]:
    """Say so when switching fusion off changed nothing."""
    from .module import decode

    def opcodes(data: bytes) -> list[str]:
        return [instruction.opcode for instruction in decode(data).entry.instructions]

    if opcodes(made.after) != opcodes(fused.after):
        return ()
    return ("with fusion off the program is the same: nothing to fuse in it, or this compiler has no such switch",)


def _with_notes(made: Compiled, notes: tuple[str, ...]) -> Compiled:
    return replace(made, notes=(*made.notes, *notes)) if notes else made
