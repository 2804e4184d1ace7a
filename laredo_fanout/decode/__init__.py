"""Decoding of the stream's messages into changes of tables, in whole transactions."""
