"""Implicit models, known by their samples alone and trained against a discriminator or critic."""
