"""Codecs: between columns and tensors."""
