"""A writer whose artifacts wait to be verified."""

from typing import Any

from laredo_model import position
from tests.support.processes import wait_until
from tests.support.writer.writing import Writer


def waits(writer: Writer, at_least: int) -> dict[str, Any]:
    """Until the next artifact waits that ends there or beyond; what /status says of it."""

    def unverified() -> dict[str, Any] | None:
        if writer.program.get("/status") is None:
            return None  # it has just been started
        found: dict[str, Any] | None = writer.status()["unverified"]
        if found is None or position.parse(found["position"]) < at_least:
            return None
        return found

    return wait_until(unverified, f"an artifact at {at_least:#x} waits")
