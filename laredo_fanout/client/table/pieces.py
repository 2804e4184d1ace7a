"""Cuts a batch of changes into pieces that are applied without a pause."""

from collections.abc import Iterator

from laredo_fanout.client.events import Changes, TransactionPart


def pieces(changes: Changes, most: int) -> Iterator[Changes]:
    """Split changes into batches of at most ``most``; only a larger transaction is cut."""
    if len(changes) <= most:
        yield changes
        return
    held: list[TransactionPart] = []
    for fragment in _fragments(changes, most):
        if held and fragment.stop - held[0].start > most:
            yield _batch(changes, held)
            held = []
        held.append(fragment)
        if not fragment.last:
            yield _batch(changes, held)
            held = []
    if held:
        yield _batch(changes, held)


def _fragments(changes: Changes, most: int) -> Iterator[TransactionPart]:
    for part in changes.transactions():
        start = part.start
        while part.stop - start > most:
            yield part._replace(start=start, stop=start + most, last=False)
            start += most
        yield part._replace(start=start)


def _batch(changes: Changes, parts: list[TransactionPart]) -> Changes:
    start, stop = parts[0].start, parts[-1].stop
    # After the last change of a batch comes the end of its transaction alone.
    first = changes.sequence(start) if start < len(changes) else changes.last_sequence + 1
    return Changes(
        first,
        changes.actions[start:stop],
        changes.keys[start:stop],
        changes.lines[start:stop],
        None if changes.old_lines is None else changes.old_lines[start:stop],
        [part.stop - part.start for part in parts],
        [part.position for part in parts],
        [part.time_us for part in parts],
        not parts[-1].last,
        changes.sequences[start:stop] if changes.sequences else None,
    )
