"""The ground: WAL positions, histories, columns, rows, keys, changes and the JSON value rules."""
