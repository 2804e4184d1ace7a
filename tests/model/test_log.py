"""Events of the modules that other programs import go where these send their own."""

import logging

import pytest
import structlog
from structlog.testing import capture_logs

from laredo_service.log import Log


def test_a_program_that_configured_structlog_gets_the_events() -> None:
    with capture_logs() as logs:
        Log("laredo_archive.test").bind(table="public.users").warning(
            "S3 request retried", attempt=1
        )
    assert logs == [
        {
            "event": "S3 request retried",
            "table": "public.users",
            "attempt": 1,
            "log_level": "warning",
        }
    ]


def test_any_other_has_records_of_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    structlog.reset_defaults()
    log = Log("laredo_archive.test").bind(table="public.users")
    with caplog.at_level(logging.INFO, "laredo_archive"):
        log.debug("not asked for")
        log.info("role assumed")
        try:
            raise ValueError("a\nb")
        except ValueError as error:
            log.exception("re-base failed")
            log.error("100% full", error=str(error), exc_info=error)
    assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records] == [
        ("laredo_archive.test", "INFO", "role assumed (table=public.users)"),
        ("laredo_archive.test", "ERROR", "re-base failed (table=public.users)"),
        ("laredo_archive.test", "ERROR", r"100% full (table=public.users, error=a\nb)"),
    ]
    assert [bool(each.exc_info) for each in caplog.records] == [False, True, True]
