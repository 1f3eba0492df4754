"""Chapter 05: pmap and what came after."""

from . import Chapter

chapter = Chapter("05_pmap", "pmap and after: one program, many devices", reading_minutes=35, needs=("04_vmap",))
