"""Cells spread over the devices of a cluster, one timed cell on each at a time."""
