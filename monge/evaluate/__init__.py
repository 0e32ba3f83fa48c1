"""How good a law is: its score of held-out rows, and how far its samples are from them."""
