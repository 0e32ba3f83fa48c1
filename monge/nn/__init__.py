"""Architectures: shapes in, shapes out."""
