"""How results look: tables, pages, plots. Imports no torch."""
