"""The command line: options in, one call of a job. torch is imported inside the commands, never at the top."""
