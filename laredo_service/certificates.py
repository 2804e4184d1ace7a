"""Expiry of the certificates that a configuration names: for ``check``, the log and metrics."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily, Metric

from laredo_service.log import Log

WARN_DAYS = (30, 7, 1)
"""Days before its end at which a certificate is logged."""
_CHECK_EVERY_S = 600.0

log = Log("laredo.certificates")


class CertificateUnreadable(ValueError):
    """The file can't be read, or holds no certificate."""


@dataclass(frozen=True)
class Certificate:
    """A configured file of certificates, in PEM."""

    #: The configuration path, such as fanout.grpc.tls.cert.
    name: str
    path: Path
    #: True if one valid certificate is enough (authorities); False if all are needed (a chain).
    any_will_do: bool = False

    def expiry(self) -> datetime:
        """Date after which it can't be used.

        :raises CertificateUnreadable: if the file can't be read, or holds no certificate.
        """
        try:
            found = x509.load_pem_x509_certificates(self.path.read_bytes())
        except OSError as error:
            raise CertificateUnreadable(f"{self.path}: {error.strerror}") from error
        except ValueError as error:
            raise CertificateUnreadable(
                f"{self.path} contains no PEM certificate that can be read: {error}"
            ) from error
        ends = [each.not_valid_after_utc for each in found]
        return max(ends) if self.any_will_do else min(ends)


def remaining(expiry: datetime, now: datetime) -> str:
    """The time that is left, for people."""
    if expiry <= now:
        return f"expired on {expiry:%Y-%m-%d %H:%M} UTC"
    return f"expires in {(expiry - now).days} days, on {expiry:%Y-%m-%d %H:%M} UTC"


class CertificateWatch:
    """Logs certificates that are about to expire, each once for each of WARN_DAYS."""

    def __init__(self, certificates: Iterable[Certificate] = ()) -> None:
        self._certificates = tuple(certificates)
        self._expiries: dict[str, datetime] = {}
        self._logged: dict[str, timedelta] = {}

    def change(self, certificates: Iterable[Certificate]) -> None:
        """Watch these from the next check on."""
        self._certificates = tuple(certificates)

    async def run(self) -> None:
        """Check the files now and every ten minutes; never returns."""
        while True:
            await asyncio.to_thread(self.check, datetime.now(UTC))
            await asyncio.sleep(_CHECK_EVERY_S)

    def check(self, now: datetime) -> None:
        """Read the files, and log new findings."""
        for certificate in self._certificates:
            try:
                expiry = certificate.expiry()
            except CertificateUnreadable as error:
                log.error("certificate unreadable", certificate=certificate.name, error=str(error))
            else:
                self._judge(certificate, expiry, now)

    def read(self) -> None:
        """Read the files for :meth:`families`; it blocks, so not on an event loop."""
        expiries = {}
        for certificate in self._certificates:
            # One that can't be read is absent from the metric; `check` logs it.
            with suppress(CertificateUnreadable):
                expiries[certificate.name] = certificate.expiry()
        self._expiries = expiries

    def _judge(self, certificate: Certificate, expiry: datetime, now: datetime) -> None:
        left = expiry - now
        steps = [timedelta(), *(timedelta(days=days) for days in sorted(WARN_DAYS))]
        step = next((each for each in steps if left <= each), None)
        if step is None:
            self._logged.pop(certificate.name, None)
        elif step != self._logged.get(certificate.name):
            self._logged[certificate.name] = step
            level = log.error if step <= timedelta(days=1) else log.warning
            level(
                "certificate expired" if left <= timedelta() else "certificate expires soon",
                certificate=certificate.name,
                path=str(certificate.path),
                expiry=expiry.isoformat(),
                days=max(0, left.days),
                cure=(
                    "replace the certificate's file; the program reads the new one without a"
                    " restart"
                ),
            )

    def families(self, prefix: str) -> Iterator[Metric]:
        """The metric of the expiries, as they were at the last :meth:`read`."""
        gauge = GaugeMetricFamily(
            f"{prefix}_certificate_expiry_timestamp_seconds",
            "Unix time at which the certificate of this configuration path expires",
            labels=["certificate"],
        )
        for name, expiry in self._expiries.items():
            gauge.add_metric([name], expiry.timestamp())
        yield gauge
