"""Types that all packages share: WAL positions, histories, columns, rows, keys, changes, JSON."""
