"""The two wire forms: one message a row, or rows by the thousand."""
