"""The executable identities: statements of the theory, held against the library's own laws."""
