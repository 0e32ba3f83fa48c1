"""A run folder: setting it up, training, loading it, and the questions it answers."""
