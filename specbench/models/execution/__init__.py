"""Faster execution of passes and rounds: compilation, capture, and the right number of threads."""
