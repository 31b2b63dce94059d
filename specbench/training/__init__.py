"""Training: how the shipped pair was made. It may use models and decoding; nothing below imports it."""
