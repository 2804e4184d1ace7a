"""Log lines about a slot that is in danger, lost, or replaced by a healthy one."""

from structlog.testing import capture_logs

from laredo_fanout.slot.health import SlotWatch
from laredo_fanout.slot.slot import Slot

_WELL = Slot("s", "pgoutput", "d", 1, 100, "reserved", None, "d", 100, 0)
_EXTENDED = _WELL._replace(wal_status="extended")
_UNRESERVED = _WELL._replace(wal_status="unreserved")
_LOST = _WELL._replace(wal_status="lost")


def _logged(*seen: Slot | None) -> list[tuple[str, str]]:
    watch = SlotWatch()
    with capture_logs() as logs:
        for slot in seen:
            watch.update(slot)
    return [(entry["event"], entry["kind"]) for entry in logs]


def test_a_slot_in_danger_gets_well() -> None:
    assert _logged(_WELL, _EXTENDED, _UNRESERVED, _UNRESERVED, _WELL) == [
        ("slot in danger", "extended"),
        ("slot in danger", "unreserved"),
        ("slot recovered", "extended"),
        ("slot recovered", "unreserved"),
    ]


def test_a_slot_that_is_lost_or_dropped_isnt_out_of_danger() -> None:
    for gone, kind in ((_LOST, "lost"), (None, "dropped")):
        said = _logged(_UNRESERVED, gone, gone)
        assert said == [("slot in danger", "unreserved"), ("slot lost", kind)]
        assert _logged(_UNRESERVED, gone, _WELL)[2:] == [
            ("slot recovered", each) for each in sorted((kind, "unreserved"))
        ]


def test_another_slot_ends_the_loss() -> None:
    assert _logged(_WELL, None, _EXTENDED)[-1] == ("slot recovered", "dropped")
