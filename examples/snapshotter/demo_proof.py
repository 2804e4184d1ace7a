"""The proof: every row of the archive against PostgreSQL, compared by PostgreSQL itself."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psycopg

from laredo_archive.reader import Archive
from laredo_model import position as position_


class Verdict(NamedTuple):
    """Comparison of one table's archive. ``missing``: rows that only PostgreSQL has."""

    table: str
    first_position: str
    position: str
    epochs: int
    artifacts: int
    rows: int
    rows_in_postgresql: int
    missing: int
    surplus: int
    verified: bool

    @property
    def equal(self) -> bool:
        """True if both have the same rows, equally often, and every file is sound."""
        return not (self.missing or self.surplus) and self.verified and self.same_count

    @property
    def same_count(self) -> bool:
        """True if both have the same number of rows."""
        return self.rows == self.rows_in_postgresql


def prove(dsn: str, table: str, archive: Path) -> Verdict:
    """Read the archive back at its head and have PostgreSQL compare it row by row."""
    found = Archive.at(str(archive))
    head = found.boundary()
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE archived (line text) ON COMMIT DROP")
        with cursor.copy("COPY archived FROM STDIN") as copy:
            for _, lines in found.rows(head):
                for line in lines:
                    copy.write_row((line.decode(),))
        cursor.execute(
            f"CREATE TEMPORARY VIEW read_back AS SELECT r.* FROM archived,"
            f" json_populate_record(NULL::{table}, line::json) r".encode()
        )
        counts = f"""
            SELECT (SELECT count(*) FROM archived), (SELECT count(*) FROM {table}),
                   (SELECT count(*) FROM (TABLE {table} EXCEPT ALL TABLE read_back) a),
                   (SELECT count(*) FROM (TABLE read_back EXCEPT ALL TABLE {table}) b)"""
        rows, held, missing, surplus = cursor.execute(counts.encode()).fetchone() or (0, 1, 1, 1)
        connection.rollback()
    return Verdict(
        table,
        position_.text(found.epochs[0].base.to_position),
        position_.text(head.position),
        len(found.epochs),
        len(found.manifest.artifacts),
        rows,
        held,
        missing,
        surplus,
        _verified(archive),
    )


def _verified(archive: Path) -> bool:
    """``laredo-archive verify``: every size, sha256, count and state checksum."""
    script = Path(sys.executable).parent / "laredo-archive"
    return (
        subprocess.run([script, "verify", archive], capture_output=True, check=False).returncode
        == 0
    )
