"""Codecs: columns become tensors and come back."""
