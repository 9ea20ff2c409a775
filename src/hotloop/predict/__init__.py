"""Predictions: how long a token takes on a machine, before anything runs."""
