"""From settings to samples: pairs, jobs, turns, and the check that a method is lossless."""
