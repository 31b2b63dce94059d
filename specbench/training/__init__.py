"""Training: everything that learns. It may use models, decoding and data; only jobs use it."""
