"""Drivers of engines behind one protocol: our own loop, and peers."""
