"""The copy of tables, first and later ones, while the stream goes on."""
