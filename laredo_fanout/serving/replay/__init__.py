"""Cold replay: late clients caught up from an archive."""
