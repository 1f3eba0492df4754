"""Wrong answers written by people who saw an exercise's prompt and stub, and never its check.

Each module is named like a bank and holds `ANSWERS`: exercise id → functions, none of which may pass.
"""
