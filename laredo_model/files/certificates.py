"""When the certificates that a configuration names expire: for ``check``, the log and metrics."""

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric

WARN_DAYS = (30, 7, 1)
"""So many days before its end a certificate is logged."""
_CHECK_EVERY_S = 600.0
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_CONSTRUCTED_0, _UTC_TIME = 0xA0, 0x17
_FIELDS_BEFORE_VALIDITY = 3

log = structlog.get_logger("laredo.certificates")


class CertificateUnreadable(ValueError):
    """The file can't be read, or holds no certificate."""


@dataclass(frozen=True)
class Certificate:
    """A configured file of certificates, in PEM."""

    #: The configuration path, such as fanout.grpc.tls.cert.
    name: str
    path: Path
    #: Whether one of them is enough, as of authorities; else all are needed, as of a chain.
    any_will_do: bool = False

    def expiry(self) -> datetime:
        """When it can't be used any more.

        :raises CertificateUnreadable: if the file can't be read, or holds no certificate.
        """
        try:
            ends = list(_ends(self.path.read_text(encoding="latin-1")))
        except OSError as error:
            raise CertificateUnreadable(f"{self.path}: {error.strerror}") from error
        except (ValueError, IndexError) as error:
            raise CertificateUnreadable(f"{self.path}: not a certificate: {error}") from error
        if not ends:
            raise CertificateUnreadable(f"{self.path} has no certificate")
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
        self._logged: dict[str, timedelta] = {}

    async def run(self) -> None:
        """Check the files now and every ten minutes; never returns."""
        while True:
            self.check(datetime.now(UTC))
            await asyncio.sleep(_CHECK_EVERY_S)

    def check(self, now: datetime) -> None:
        """Log what is new to say of the files at this time."""
        for certificate in self._certificates:
            try:
                expiry = certificate.expiry()
            except CertificateUnreadable as error:
                log.error("certificate unreadable", certificate=certificate.name, error=str(error))
                continue
            self._judge(certificate, expiry, now)

    def _judge(self, certificate: Certificate, expiry: datetime, now: datetime) -> None:
        left = expiry - now
        steps = [timedelta(), *(timedelta(days=days) for days in sorted(WARN_DAYS))]
        step = next((each for each in steps if left <= each), None)
        if step is None:
            self._logged.pop(certificate.name, None)
        elif step != self._logged.get(certificate.name):
            self._logged[certificate.name] = step
            say = log.error if step <= timedelta(days=1) else log.warning
            say(
                "certificate expired" if left <= timedelta() else "certificate expires soon",
                certificate=certificate.name,
                path=str(certificate.path),
                expiry=expiry.isoformat(),
                days=max(0, left.days),
                cure="put a new one in its place; it is read without a restart",
            )

    def families(self, prefix: str) -> Iterator[Metric]:
        """The metric of the expiries, read from the files now; what is unreadable is absent."""
        gauge = GaugeMetricFamily(
            f"{prefix}_certificate_expiry_timestamp_seconds",
            "When the certificate of this configuration path expires (Unix time)",
            labels=["certificate"],
        )
        for certificate in self._certificates:
            try:
                gauge.add_metric([certificate.name], certificate.expiry().timestamp())
            except CertificateUnreadable:
                continue
        yield gauge


def _ends(pem: str) -> Iterator[datetime]:
    for part in pem.split(_BEGIN)[1:]:
        yield _not_after(ssl.PEM_cert_to_DER_cert(_BEGIN + part.partition(_END)[0] + _END))


def _not_after(der: bytes) -> datetime:
    """The end of a certificate's validity; the standard library decodes no file of one (RFC 5280).

    Certificate and what is signed in it are sequences; in that come a version, which may be left
    out, the serial number, the algorithm and the issuer, and then the validity.
    """
    _, signed, _ = _element(der, _element(der, 0)[1])
    tag, _, after = _element(der, signed)
    at = after if tag == _CONSTRUCTED_0 else signed
    for _ in range(_FIELDS_BEFORE_VALIDITY):
        at = _element(der, at)[2]
    _, not_before, _ = _element(der, at)
    tag, start, stop = _element(der, _element(der, not_before)[2])
    text = der[start:stop].decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of a year are 1950 to 2049.
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """A DER element's tag, and where its content begins and ends."""
    tag, size, at = der[at], der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, at = int.from_bytes(der[at : at + count]), at + count
    return tag, at, at + size
