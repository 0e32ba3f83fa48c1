"""Laws known by their samples alone, trained against a critic."""
