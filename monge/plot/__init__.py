"""Pictures of samples and of training."""
