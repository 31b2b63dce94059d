"""Measurements as data and as files. Reads and writes; imports no torch."""
