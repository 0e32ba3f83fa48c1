"""Readers: files and Python objects become raw columns."""
