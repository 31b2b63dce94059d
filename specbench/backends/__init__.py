"""Engines behind one protocol. There is one so far: our own loop, on networks in this process."""
