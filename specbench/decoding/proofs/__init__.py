"""Proofs by enumeration that ship with the package, for `specbench verify`."""
