"""Readers of files and Python objects."""
