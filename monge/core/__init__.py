"""The contract: configuration, spaces, batches, models and what they can do."""
