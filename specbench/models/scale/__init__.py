"""Scale models: a small checkpoint grown to a large shape without changing its function."""
