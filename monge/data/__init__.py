"""Data: a name, a path or a Python object becomes a dataset of named fields and seeded splits."""
