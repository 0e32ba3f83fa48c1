"""Plots of samples, training, densities, latent codes and forecasts."""
