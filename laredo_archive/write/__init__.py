"""The commit protocol: what one writer does to an archive."""
