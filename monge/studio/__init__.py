"""The studio: look at data, fit, ask and compare from a browser."""
