"""From the stream's messages to changes of tables, in whole transactions."""
