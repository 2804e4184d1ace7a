"""Tables that match a configuration's patterns now, and the check of those tables."""

from laredo_fanout.client.errors import StreamError
from laredo_fanout.client.stream.stream import served_tables
from laredo_snapshotter import table_patterns
from laredo_snapshotter.check.check import check_tables
from laredo_snapshotter.check.finding import FindingsSection, WriterFinding
from laredo_snapshotter.config import SnapshotterBlock
from laredo_snapshotter.errors import ConfigRefused


async def check_block(block: SnapshotterBlock) -> int:
    """Check every table, those of patterns too, and print what was found; the exit code."""
    known, findings = {}, []
    for each, path in table_patterns.patterns(block).items():
        named = f"{path}: {each.pattern.schema}.{each.pattern.table}"
        try:
            known[each] = list(each.pattern.of(await served_tables(each.endpoint)))
        except StreamError as error:
            findings.append(WriterFinding(named, False, f"its tables aren't known: {error}"))
        else:
            findings.append(WriterFinding(named, True, f"matches {len(known[each])} tables"))
    try:
        tables = table_patterns.tables(block, known)
    except ConfigRefused as refused:
        findings.append(WriterFinding("patterns", False, str(refused)))
        tables = table_patterns.tables(block, {})
    sections = [FindingsSection("patterns", findings)] if findings else []
    return await check_tables(tables, block.http, sections)
