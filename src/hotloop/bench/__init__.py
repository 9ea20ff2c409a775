"""Measurements: the ladder against the memory's own speed, and the time to the first token."""
