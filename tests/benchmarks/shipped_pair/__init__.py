"""How the shipped pair was made."""
