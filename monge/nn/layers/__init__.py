"""Single layers: activations, normalisation, dropout, pooling, convolutions."""
