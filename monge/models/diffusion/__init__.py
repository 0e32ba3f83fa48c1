"""Diffusion models: distributions learned by removing noise."""
