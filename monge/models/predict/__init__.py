"""Laws of targets given inputs: classifiers and regressors."""
