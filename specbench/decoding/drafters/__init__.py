"""Drafters: they propose a token tree, and report the distribution from which each token was drawn."""
