"""Chips: what their makers and the field say about them, with sources; and the roofline."""
