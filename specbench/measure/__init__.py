"""From settings to samples: pairs, jobs, turns, and the losslessness check."""
