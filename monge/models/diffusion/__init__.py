"""Diffusion: laws learned by undoing noise."""
