"""What a program can be compiled for: TPU slices by chip and shape."""

import math
import re
from dataclasses import dataclass

from .errors import UnknownTarget

GIB = 2**30


@dataclass(frozen=True)
class Generation:
    """What the compiler must be told about one generation of chips.

    Args:
        name: the chip's short name, e.g. "v5e".
        compiler_name: as libtpu spells it.
        config: the chip configuration that makes a chip one device, where it is not so anyway.
        axes: of a slice: 2 or 3.
        devices_per_chip: JAX devices; 2 where each core is one.
        slice_counts_cores: in names such as "v5p-128" the number counts cores, two a chip.
        largest: the largest slice that exists, by shape.
        most_chips: of one slice.
        usable_gib: HBM that the compiler may use on one device, in GiB.
    """

    name: str
    compiler_name: str
    config: str | None
    axes: int
    devices_per_chip: int
    slice_counts_cores: bool
    largest: tuple[int, ...]
    most_chips: int
    usable_gib: float


# Usable HBM: the compiler's own words when a program asks for too much (libtpu 0.0.23 to 0.0.50.1 agree).
# Largest slices and naming: Google Cloud, "TPU versions", read 2026-11-30.
_GENERATIONS = {
    "v2": Generation("v2", "v2", None, 2, 2, True, (16, 16), 256, 7.48),
    "v3": Generation("v3", "v3", None, 2, 2, True, (32, 32), 1024, 15.48),
    "v4": Generation("v4", "v4", "megacore", 3, 1, True, (16, 16, 16), 4096, 30.75),
    "v5e": Generation("v5e", "v5e", None, 2, 1, False, (16, 16), 256, 15.75),
    "v5p": Generation("v5p", "v5p", None, 3, 1, True, (16, 20, 28), 8960, 95.73),
    "v6e": Generation("v6e", "v6e", None, 2, 1, False, (16, 16), 256, 31.24),
    "7x": Generation("7x", "tpu7x", None, 3, 2, True, (16, 24, 24), 9216, 94.74),
}
_ALIASES = {
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "v5": "v5p",
    "v6lite": "v6e",
    "trillium": "v6e",
    "v7x": "7x",
    "v7": "7x",
    "7": "7x",
    "ironwood": "7x",
}
_EXAMPLES = '"v5e:2x2", "v6e:4x4", "v4:2x2x1", "v5p:4x4x8", "7x:2x2x1"'


@dataclass(frozen=True)
class Target:
    """A TPU slice.

    Args:
        generation: of its chips.
        shape: chips along each axis, e.g. (2, 2).
    """

    generation: Generation
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """As the course writes it, e.g. "v5e:2x2"."""
        return f"{self.chip}:{_by(self.shape)}"

    @property
    def chip(self) -> str:
        """The chip's short name, e.g. "v5e"."""
        return self.generation.name

    @property
    def chips(self) -> int:
        """How many chips."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """How many JAX devices."""
        return self.chips * self.generation.devices_per_chip

    @property
    def capacity_bytes(self) -> int:
        """HBM that the compiler may use on one device."""
        return round(self.generation.usable_gib * GIB)

    @property
    def compiler_name(self) -> str:
        """As libtpu wants to hear it, e.g. "tpu7x:2x2x1"."""
        return f"{self.generation.compiler_name}:{_by(self.shape)}"

    @property
    def compiler_arguments(self) -> dict[str, object]:
        """What libtpu must be told beside the name."""
        told: dict[str, object] = {}
        if self.generation.config:
            told["chip_config_name"] = self.generation.config
        if any(size % 2 for size in self.shape[:2]):
            # Hosts have 2x2 chips unless told otherwise, and older compilers refuse slices of less than one.
            told["chips_per_host_bounds"] = (min(2, self.shape[0]), min(2, self.shape[1]), 1)
        return told


def parse(text: str | Target) -> Target:
    """Read a target: a chip's name and the slice's shape in chips.

    Args:
        text: e.g. "v5e:2x2"; a chip's name alone is one chip of it.

    Raises:
        UnknownTarget: no such chip or shape; names ones that are.

    Example:
        >>> parse("v5e:2x2").devices, parse("tpu7x:2x2x1").devices, parse("v5p").name
        (4, 8, 'v5p:1x1x1')
        >>> parse("v5p-128")
        Traceback (most recent call last):
        ...
        tpulab.xla.errors.UnknownTarget: "v5p-128" counts cores, two a chip: that is 64 chips, e.g. "v5p:4x4x4"
    """
    if isinstance(text, Target):
        return text
    if not isinstance(text, str):
        raise UnknownTarget(f"a target is a text such as {_EXAMPLES}; got {type(text).__name__}")
    name, colon, shape = text.strip().lower().partition(":")
    if not colon and (slice_name := re.fullmatch(r"(.+)-(\d+(?:x\d+)*)", name)):
        return _from_slice_name(text, slice_name[1], slice_name[2])
    generation = _generation(name, text)
    if not colon:
        return Target(generation, (1,) * generation.axes)
    if not re.fullmatch(r"\d{1,5}(x\d{1,5}){0,3}", shape):
        raise UnknownTarget(f'after "{name}:" comes the shape in chips; {_try(generation)}; got {text!r}')
    return Target(generation, _checked(generation, tuple(map(int, shape.split("x"))), text))


def _generation(name: str, text: str) -> Generation:
    """Find a generation by whatever it is called."""
    short = re.sub(r"^(cloud)?tpu|[ _]", "", name.replace(" ", ""))
    short = _ALIASES.get(short, short)
    if short not in _GENERATIONS:
        raise UnknownTarget(f"there is no TPU chip {name!r}; chips are {', '.join(_GENERATIONS)}; try {_EXAMPLES}")
    return _GENERATIONS[short]


def _from_slice_name(text: str, chip: str, number: str) -> Target:
    """Explain a name such as "v5p-128"; take one such as "tpu7x-4x4x4", which is a shape."""
    generation = _generation(chip, text)
    if "x" in number:
        return Target(generation, _checked(generation, tuple(map(int, number.split("x"))), text))
    count = int(number) // 2 if generation.slice_counts_cores else int(number)
    counts = "cores, two a chip: that is" if generation.slice_counts_cores else "chips:"
    if not 1 <= count <= generation.most_chips:
        raise UnknownTarget(f"there is no slice {text!r}; {_try(generation)}")
    shape = _by(_checked(generation, nearly_cubic(count, generation.axes), text))
    plural = "s" if count > 1 else ""
    raise UnknownTarget(f'"{text}" counts {counts} {count} chip{plural}, e.g. "{generation.name}:{shape}"')


def _checked(generation: Generation, shape: tuple[int, ...], text: str) -> tuple[int, ...]:
    """Refuse shapes that no slice has; the compiler dies of some."""
    while len(shape) > generation.axes and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) == 2 and generation.axes == 3:
        shape = (*shape, 1)
    within_a_host = shape[:2] in ((1, 1), (1, 2), (2, 1)) and math.prod(shape[2:]) == 1
    whole_hosts = all(size % 2 == 0 for size in shape[:2])
    if len(shape) != generation.axes or min(shape) < 1 or not (within_a_host or whole_hosts):
        axes = f"{generation.axes} axes"
        raise UnknownTarget(
            f"no {generation.name} slice has the shape of {text!r}: {axes}, the first two even; {_try(generation)}"
        )
    fits = all(have <= most for have, most in zip(sorted(shape), sorted(generation.largest), strict=True))
    if math.prod(shape) > generation.most_chips or not fits:
        raise UnknownTarget(f"the largest {generation.name} slice is {_by(generation.largest)} chips; got {text!r}")
    return shape


def nearly_cubic(count: int, axes: int) -> tuple[int, ...]:
    """Spread chips over axes as evenly as their prime factors allow.

    Example:
        >>> nearly_cubic(64, 3), nearly_cubic(8, 2), nearly_cubic(4, 3)
        ((4, 4, 4), (2, 4), (2, 2, 1))
    """
    shape = [1] * axes
    factors, rest = [], count
    for prime in range(2, count + 1):
        while rest % prime == 0:
            factors.append(prime)
            rest //= prime
    for factor in reversed(factors):
        shape[shape.index(min(shape))] *= factor
    return tuple(sorted(shape, reverse=1 in shape))


def _try(generation: Generation) -> str:
    """Name shapes that work."""
    shapes = ("1x1", "2x2", "2x4", "16x16") if generation.axes == 2 else ("1x1x1", "2x2x1", "4x4x4", "8x8x8")
    return f"try {', '.join(f'{generation.name}:{shape}' for shape in shapes)}"


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
