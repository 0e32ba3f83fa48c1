"""Models of sequences: language, translation and time series."""
