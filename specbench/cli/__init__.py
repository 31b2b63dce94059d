"""The command line: parse, call bench, print. torch is imported inside the commands, never at the top of a file."""
