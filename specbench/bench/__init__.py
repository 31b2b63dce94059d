"""What is measured: specs, prompts, the runner, statistics, records and tables."""
