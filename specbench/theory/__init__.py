"""The formulas of speculative decoding, as functions of numbers. Pure."""
