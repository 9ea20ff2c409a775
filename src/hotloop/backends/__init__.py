"""Backends: from a verified program to something that runs."""
