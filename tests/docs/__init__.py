"""The documentation says what is."""
