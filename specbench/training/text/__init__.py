"""What a draft learns from: texts and the answers of its target, as tokens on disk."""
