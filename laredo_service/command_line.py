"""Option types that the programs' command lines share."""

import math
from typing import Any

import click

MOST_HOURS = 1000 * 8766
"""A thousand years: that much can be subtracted from today's date."""


class Amount(click.FloatRange):
    """A finite number; a range alone lets ``nan`` pass, and without an upper limit ``inf``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert a number, or fail with a usage error."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} isn't a finite number.", param, ctx)
        return number
