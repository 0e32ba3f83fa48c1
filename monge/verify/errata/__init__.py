"""Common errors, each beside the correct statement: negative controls of the identities."""
