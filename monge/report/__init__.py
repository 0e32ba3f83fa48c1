"""HTML reports of runs and comparisons."""
