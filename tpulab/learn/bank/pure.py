"""Chapter 01: pure functions."""

from . import Chapter

chapter = Chapter(
    "01_pure_functions",
    "Pure functions: everything that goes in is an argument",
    reading_minutes=30,
    needs=("00_start",),
)
