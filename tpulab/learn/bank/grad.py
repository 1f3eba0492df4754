"""Chapter 02: grad."""

from . import Chapter

chapter = Chapter(
    "02_grad",
    "grad: a function goes in, its gradient function comes out",
    reading_minutes=30,
    needs=("01_pure_functions",),
)
