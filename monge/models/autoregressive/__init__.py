"""Models that factorise into conditionals, one entry after the other."""
