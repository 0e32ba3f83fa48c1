"""Laws trained by moving samples to data at the least cost."""
