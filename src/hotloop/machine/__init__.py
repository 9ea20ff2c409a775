"""Machines: hardware as plain data."""
