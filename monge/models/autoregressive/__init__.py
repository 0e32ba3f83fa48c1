"""Laws written as a product of conditionals, one entry after the other."""
