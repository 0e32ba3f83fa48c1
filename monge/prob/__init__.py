"""Distributions, bijections and divergences; networks are arguments and are never built here."""
