"""Masked and autoregressive networks."""
