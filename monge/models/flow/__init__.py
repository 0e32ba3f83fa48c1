"""Normalising flows: x = f(z) with f invertible, so that the density of x is known."""
