"""The bodies of commands."""
