"""Closed-form baselines, against which every other model is compared."""
