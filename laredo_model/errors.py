"""Errors of positions, histories, times, columns and rows that can't be parsed."""


class ModelError(ValueError):
    """Root of the errors of texts and rows that can't be parsed."""


class BadPosition(ModelError):
    """A text that isn't a WAL position."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a WAL position; expected X/X in hex, such as 0/19F000")


class BadHistory(ModelError):
    """A text that isn't a history."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is not a history; expected system_identifier:timeline:database_oid"
        )


class BadTime(ModelError):
    """Not a time in ISO 8601, or one outside of the years 1 to 9999 in UTC."""


class BadMessage(ModelError):
    """A message of the wire with a part that its contract doesn't allow."""


class BadColumn(ModelError):
    """A column definition that lacks a part or has one of the wrong type."""


class BadLine(ModelError):
    """Bytes that are not a row's line, or a line that lacks a column of its table."""
