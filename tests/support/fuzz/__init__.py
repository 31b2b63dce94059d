"""Random bad input: what somebody may write, in which files, and how a process that was given it ended."""
