"""Training: what learns. It may use models, decoding and data; jobs use it, and nothing below imports it."""
