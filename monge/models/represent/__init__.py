"""Encoders that learn from rows without labels."""
