"""Rules that decide which drafted tokens are accepted and what is emitted after them."""
