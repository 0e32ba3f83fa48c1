"""Laws of sequences: language, translation, series."""
