"""Random changes of training rows."""
