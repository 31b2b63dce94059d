"""The backend `transformers`: `generate()` and its kinds of assisted generation, on the weights of a checked pair."""
