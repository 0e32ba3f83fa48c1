"""Supervised predictors of targets given inputs: classifiers and regressors."""
