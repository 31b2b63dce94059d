"""What the numbers say: verdicts, comparisons, advice. Imports no torch."""
