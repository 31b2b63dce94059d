"""Engines in processes of their own, which have the checkpoints of a pair and tell what they decoded."""
