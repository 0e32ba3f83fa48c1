"""Latent variable models: p(x) = ∫ p(x | z) p(z) dz."""
