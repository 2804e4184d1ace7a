"""Certificates made by openssl for a test: an authority, and what it signs."""

from pathlib import Path

from laredo_fanout.serving.options import TlsFiles
from tests.support.processes import completed


def _openssl(*arguments: str | Path) -> None:
    done = completed(["openssl", *arguments])
    assert done.returncode == 0, done.stderr


class Authority:
    """Signs certificates of localhost; its files are in a directory of their own."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.name = directory, name
        self.pem = directory / f"{name}.pem"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "3650", "-subj", f"/CN={name}", "-out", self.pem),
            *("-keyout", directory / f"{name}.key"),
        )

    def sign(self, name: str, days: int = 90) -> TlsFiles:
        """A certificate of this name for localhost, and its key; days 0: it has expired."""
        key, request = self.directory / f"{name}.key", self.directory / f"{name}.csr"
        pem, names = self.directory / f"{name}.pem", self.directory / f"{name}.ext"
        names.write_text("subjectAltName = DNS:localhost, IP:127.0.0.1\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.pem, "-CAcreateserial"),
            *("-CAkey", self.directory / f"{self.name}.key", "-days", str(days)),
            *("-extfile", names, "-out", pem),
        )
        return TlsFiles(pem, key)


def put_in_place(new: TlsFiles, old: TlsFiles) -> None:
    """Replace the files one after the other, as a person does."""
    for fresh, place in ((new.cert, old.cert), (new.key, old.key), (new.client_ca, old.client_ca)):
        if fresh is not None and place is not None:
            temporary = place.with_suffix(".new")
            temporary.write_bytes(fresh.read_bytes())
            temporary.replace(place)
