"""Laws with latent variables: p(x) = ∫ p(x | z) p(z) dz."""
