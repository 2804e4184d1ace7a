"""Cold replay: clients behind the journal are caught up from the table's archive."""
