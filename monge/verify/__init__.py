"""Executable identities: statements of the theory, checked on the library's own models."""
