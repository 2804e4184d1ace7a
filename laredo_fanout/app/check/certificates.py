"""Checks of the configured certificates: readable, and valid for a while."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from laredo_fanout.app import certificates
from laredo_fanout.app.check import ServerFinding, Verdict
from laredo_fanout.config import Config
from laredo_service.certificates import WARN_DAYS, CertificateUnreadable, remaining

_CURE = "replace the certificate's file; the server reads the new one without a restart"


def findings(config: Config) -> Iterator[ServerFinding]:
    """One for each certificate."""
    now = datetime.now(UTC)
    for certificate in certificates.configured(config):
        try:
            expiry = certificate.expiry()
        except CertificateUnreadable as error:
            cure = "correct the path, or let this user read it"
            yield ServerFinding(certificate.name, Verdict.MISSING, str(error), cure)
            continue
        detail = f"{certificate.path} {remaining(expiry, now)}"
        if expiry <= now:
            yield ServerFinding(certificate.name, Verdict.MISSING, detail, _CURE)
        elif expiry <= now + timedelta(days=max(WARN_DAYS)):
            yield ServerFinding(certificate.name, Verdict.WARNING, detail, _CURE)
        else:
            yield ServerFinding(certificate.name, Verdict.RIGHT, detail)
