"""Hugging Face checkpoints as functions (context, token tree) → distributions; caches and masks are ours."""
