"""The bodies of the commands that train: drafts, heads, and the search for a draft's shape."""
