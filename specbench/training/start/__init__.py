"""What a draft is begun as, which tokens it knows, and how it is written down."""
