"""Optimal transport solvers."""
