"""Numerical algorithms on tensors; no probability, no networks."""
