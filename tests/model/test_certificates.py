"""The expiry of certificates: read from real files, logged ahead, forgotten once renewed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from laredo_service.certificates import Certificate, CertificateUnreadable, CertificateWatch
from tests.support.server.certificates import Authority


def near(found: datetime, days: float) -> bool:
    return abs(found - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=10)


# UTCTime ends with 2049; what ends later is a GeneralizedTime.
@pytest.mark.parametrize("days", [1, 90, 20_000])
def test_the_end_is_what_openssl_wrote(tmp_path: Path, days: int) -> None:
    files = Authority(tmp_path / "ca").sign("server", days)
    assert near(Certificate("c", files.cert).expiry(), days)


def test_a_chain_ends_with_its_first_authorities_with_their_last(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    both = tmp_path / "both.pem"
    both.write_text(authority.pem.read_text() + authority.sign("server", 5).cert.read_text())
    assert near(Certificate("c", both).expiry(), 5)
    assert near(Certificate("c", both, any_will_do=True).expiry(), 3650)


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").sign("server")
    broken = tmp_path / "broken.pem"
    lines = files.cert.read_text().splitlines()
    broken.write_text("\n".join((lines[0], lines[1][:24], lines[-1])))
    for path in (files.key, tmp_path / "none.pem", broken):
        with pytest.raises(CertificateUnreadable, match=path.name):
            Certificate("c", path).expiry()


def test_it_is_logged_ahead_once_a_step_and_again_for_the_next_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate = Certificate("fanout.grpc.tls.cert", authority.sign("server", 90).cert)
    watch, end = CertificateWatch([certificate]), certificate.expiry()
    seen = []
    for days in (60, 31, 29, 28, 8, 6.5, 5, 0.5, 0.4, -1, -2):
        with capture_logs() as logs:
            watch.check(end - timedelta(days=days))
        seen += [(days, entry["log_level"], entry["event"]) for entry in logs]
    soon = "certificate expires soon"
    assert seen == [
        (29, "warning", soon),
        (6.5, "warning", soon),
        (0.5, "error", soon),
        (-1, "error", "certificate expired"),
    ]
    authority.sign("server", 365)
    with capture_logs() as logs:
        watch.check(end)
    assert logs == []
