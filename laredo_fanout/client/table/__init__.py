"""The table as an application has it: rows, indexes, and what it hears of changes."""
