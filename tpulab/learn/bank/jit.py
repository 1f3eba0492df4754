"""Chapter 03: jit."""

from . import Chapter

chapter = Chapter("03_jit", "jit: recorded once, run many times", reading_minutes=35, needs=("02_grad",))
