"""Many models on one dataset: plan, workers, leaderboard."""
