"""From the name of a checkpoint to a loaded, checked network."""
