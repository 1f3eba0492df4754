"""Running the compiler: a lowered program in, the optimised one and its memory out."""

from __future__ import annotations

import datetime
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import entry, memory, pair
from .compiled import Compiled, Memory
from .errors import CompileError, does_not_fit, in_one_line, is_out_of_hbm, sizes_in
from .module import decode
from .source import lines_of
from .target import Target

if TYPE_CHECKING:
    from jax.stages import Lowered

    from .lowering import Call


def compiled(
    lowered: Lowered, call: Call, options: Mapping[str, Any], *, target: Target | None = None, devices: int = 1
) -> Compiled:
    """Compile a program, or find the result on disk.

    Args:
        lowered: the program.
        call: the function it comes from, for its name and text.
        options: XLA options.
        target: what it is for; None for this machine.
        devices: how many run it.

    Raises:
        CompileError: the compiler refuses; in one line.
    """
    versions = pair.versions()
    if target is None:
        versions.pop("libtpu", None)
    place = target.name if target else _here()
    key = entry.key(place, call.name, lowered.as_text(), call.source, options, versions)
    if (kept := entry.read(key)) is not None:
        return kept
    after, stats = _run(lowered, options, target)
    before = _bytes(lowered.compiler_ir("hlo"))
    optimised = decode(after)
    made = Compiled(
        name=call.name,
        target=place,
        chip=target.chip if target else None,
        devices=optimised.devices or devices,
        before=before,
        after=after,
        versions=versions,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        memory=stats,
        lines=lines_of(decode(before), optimised),
        options={name: str(value) for name, value in options.items()},
    )
    entry.write(key, made)
    return made


def dump_options(folder: Path) -> dict[str, Any]:
    """Have the compiler write what it makes into a folder, as bytes that need no text parser."""
    return {"xla_dump_to": str(folder), "xla_dump_hlo_as_proto": True}


def run(lowered: Lowered, options: Mapping[str, Any], folder: Path, target: Target | None) -> Any:
    """Compile with a folder for the compiler's own files; give JAX's compiled object.

    Raises:
        CompileError: the compiler refuses; in one line.
    """
    try:
        with warnings.catch_warnings():
            # JAX's own cache does not serve programs for devices that are not here, and says so each time.
            warnings.filterwarnings("ignore", ".*persistent compilation cache.*")
            return lowered.compile(compiler_options={**options, **dump_options(folder)})
    except Exception as error:
        raise _translated(error, folder, target) from None


def _run(lowered: Lowered, options: Mapping[str, Any], target: Target | None) -> tuple[bytes, Memory | None]:
    """Compile; give the optimised program and what memory it needs."""
    with tempfile.TemporaryDirectory(prefix="tpulab-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        made = run(lowered, options, folder, target)
        stats = memory.of_dump(folder, target.capacity_bytes if target else None)
        if target and stats and (stats.peak_bytes or 0) > target.capacity_bytes:
            # Compilers up to libtpu 0.0.37 look at arguments alone.
            raise does_not_fit(target.name, stats.peak_bytes, target.capacity_bytes, stats.buffers)
        if target and memory.is_for_cpu(folder):
            raise CompileError(
                f"the function names devices of its own, and they are this machine's; for {target.name} "
                "give pmap devices=list(tpulab.xla.mesh_for(target, axes).devices.flat)"
            )
        try:
            return _bytes(made.runtime_executable().hlo_modules()[0]), stats
        except Exception as error:  # where jax and libtpu are some releases apart
            if (module := memory.module_of_dump(folder)) is not None:
                return module, stats
            raise in_one_line(error) from None


def _translated(error: Exception, folder: Path, target: Target | None) -> CompileError:
    """Put the compiler's refusal into one line, with buffers when memory is short."""
    if target is None or not is_out_of_hbm(str(error)):
        return in_one_line(error)
    needed, available = sizes_in(str(error))
    stats = memory.of_dump(folder, target.capacity_bytes)
    if stats and stats.peak_bytes:
        needed = stats.peak_bytes
    return does_not_fit(target.name, needed, available or target.capacity_bytes, stats.buffers if stats else ())


def _bytes(module: Any) -> bytes:
    return module.as_serialized_hlo_module_proto()


def _here() -> str:
    """Name this machine's device as programs for it are named: "cpu", or the chip's kind."""
    import jax

    return jax.devices()[0].device_kind
