"""Cuts at one position, whatever the tables' streams do."""

from hypothesis import given
from hypothesis import strategies as st

from laredo_snapshotter.diff.cuts import MOST_PENDING, PendingCuts, cut_together


class Table:
    def __init__(self, history: str, position: int | None) -> None:
        self.history = history
        self.position = position
        self.cuts: list[int] = []
        self.common: list[int] = []
        self.ticks = 0

    @property
    def stream(self) -> tuple[str, int] | None:
        return None if self.position is None else (self.history, self.position)

    def cut(self, position: int, *, common: bool) -> None:
        self.cuts.append(position)
        if common:
            self.common.append(position)

    def tick(self) -> None:
        self.ticks += 1


def test_all_live_tables_of_a_history_are_cut_at_the_highest_position() -> None:
    a, b, c = Table("h", 5), Table("h", 9), Table("h", None)
    other = Table("another", 3)
    cut_together([a, b, c, other])
    assert (a.cuts, b.cuts, c.cuts, other.cuts) == ([9], [9], [], [3])
    assert [table.ticks for table in (a, b, c, other)] == [1, 1, 1, 1]
    assert a.common == []
    cut_together([a, b], common=True)
    assert (a.common, b.common) == ([9], [9])


def test_cuts_are_taken_in_order_once_and_a_forced_one_stays_forced() -> None:
    owed = PendingCuts(60)
    owed.add(7, 0.0, forced=True)
    owed.add(5, 1.0)
    owed.add(7, 2.0)
    assert owed.next_position() == 5
    assert [(cut.position, cut.forced) for cut in owed.take(6)] == [(5, False)]
    assert [(cut.position, cut.forced) for cut in owed.take(9)] == [(7, True)]
    assert owed.take(99) == []
    owed.add(8, 0.0, common=True)
    owed.add(8, 1.0)
    assert [(cut.position, cut.common) for cut in owed.take(9)] == [(8, True)]


def test_a_stuck_table_forgets_old_cuts_but_never_a_forced_one_nor_the_newest() -> None:
    owed = PendingCuts(60)
    owed.add(1, 0.0)
    owed.add(2, 0.0, forced=True)
    owed.add(3, 100.0)
    assert [cut.position for cut in owed.take(99)] == [2, 3]
    assert owed.forgotten == 1


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=40))
def test_taking_at_any_rate_gives_each_position_once_in_order(
    steps: list[tuple[int, bool]],
) -> None:
    owed = PendingCuts(1e9)
    asked: set[int] = set()
    reached, taken = -1, []
    for position, forced in steps:
        if position > reached:
            owed.add(position, 0.0, forced=forced)
            asked.add(position)
        if forced:
            reached = max(reached, position)
            taken += [cut.position for cut in owed.take(reached)]
    taken += [cut.position for cut in owed.take(99)]
    assert taken == sorted(asked)


def test_what_a_table_owes_is_bounded() -> None:
    owed = PendingCuts(1e9)
    for position in range(3 * MOST_PENDING):
        owed.add(position, 0.0)
    assert len(owed) == MOST_PENDING
    assert owed.forgotten == 2 * MOST_PENDING
    assert owed.take(10**6)[-1].position == 3 * MOST_PENDING - 1
