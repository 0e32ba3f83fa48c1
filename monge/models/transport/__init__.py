"""Models trained by optimal transport between samples and data."""
