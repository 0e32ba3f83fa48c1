"""Transforms that are part of a dataset's name, such as +binarise."""
