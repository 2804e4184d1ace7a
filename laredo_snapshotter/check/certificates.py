"""Findings of ``check`` about the certificates that a writer's configuration names."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from laredo_service.certificates import CertificateUnreadable, remaining
from laredo_snapshotter.check.finding import WriterFinding
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.table.certificates import configured


def findings(tables: Sequence[TableConfig]) -> Iterator[WriterFinding]:
    """Finding for each certificate."""
    now = datetime.now(UTC)
    for certificate in configured(tables):
        try:
            expiry = certificate.expiry()
        except CertificateUnreadable as error:
            yield WriterFinding(certificate.name, False, str(error))
            continue
        detail = f"{certificate.path} {remaining(expiry, now)}"
        yield WriterFinding(certificate.name, expiry > now, detail)
