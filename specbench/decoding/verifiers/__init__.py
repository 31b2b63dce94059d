"""Rules that decide which drafted tokens are accepted and which token is emitted after them."""
