"""Invertible maps with their log-determinants; networks come as arguments."""
