"""Evaluation of models: log-likelihood of held-out rows, and the distance of samples from them."""
