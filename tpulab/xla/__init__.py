"""The compiler lab: what XLA makes of a program, for a TPU that need not be here."""
