"""Rendering of results: tables, pages, plots. Imports no torch."""
