"""Chapter 04: vmap."""

from . import Chapter

chapter = Chapter("04_vmap", "vmap: write it for one, run it for a batch", reading_minutes=25, needs=("03_jit",))
