"""The process: every table's writer, HTTP, logs."""
