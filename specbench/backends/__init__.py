"""Engines behind one protocol: our own loop in this process, and other engines."""
