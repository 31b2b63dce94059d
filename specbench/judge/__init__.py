"""Conclusions from the numbers: verdicts, comparisons, advice. Imports no torch."""
