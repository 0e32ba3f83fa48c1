"""Events and conditions as inputs of networks."""
