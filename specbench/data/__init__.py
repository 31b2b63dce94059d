"""Prompts: from files, from data sets of the hub, and those that ship inside."""
