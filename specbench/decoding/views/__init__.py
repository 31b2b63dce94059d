"""Models that read a part of the text only, for drafts of long contexts."""
