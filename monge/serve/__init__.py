"""HTTP: what the server and the studio share, and the server of fitted models."""
