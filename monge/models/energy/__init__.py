"""Energy-based models: densities known up to a constant."""
