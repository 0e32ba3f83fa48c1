"""Training as a game of turns: one loop, its optimisers, its memory and its checkpoint."""
