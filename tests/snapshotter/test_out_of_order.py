"""A backlog is released out of order: nothing that lasts is made of it until order is restored."""

from pathlib import Path

import pytest

from laredo_model import position
from tests.processes import wait_until
from tests.snapshotter.served import Change, Served, delete, put, rows
from tests.snapshotter.writing import Writer


def test_all_of_it_is_one_diff_when_order_is_restored(tmp_path: Path, served: Served) -> None:
    with Writer(tmp_path, served) as writer:
        writer.program.wait_ready()
        writer.wait_head(served.commit("users", put(1, "before")))
        start = served.position
        first, second, third, fourth = served.backlog(
            "users",
            [put(1, "first"), put(20, "first")],
            [delete(20), put(2, "second")],
            [put(1, "third"), put(21, "third")],
            [delete(21), put(22, "fourth")],
        )
        served.release("users", third, early=True)
        served.release("users", first)
        served.release("users", fourth, early=True)
        wait_until(lambda: writer.status()["out_of_order"], "the writer is told")
        assert writer.head() == start
        served.release("users", second)
        served.release("users", fourth)
        served.look()
        writer.wait_head(served.position)
        wait_until(lambda: not writer.status()["out_of_order"], "order")
        served.commit("users", put(3, "after"))
        writer.wait_head(served.position)
        writer.assert_equal()
        ends = [position.parse(each["to_position"]) for each in writer.artifacts()]
        inside = {each.positions[-1] for each in (first, second, third)}
        assert not inside & set(ends)
        assert fourth.positions[-1] in ends


def test_a_writer_that_begins_meanwhile_says_why_it_waits(tmp_path: Path, served: Served) -> None:
    served.add("users", rows(0, 5))
    first, second = served.backlog("users", [put(1, "first")], [put(2, "second")])
    served.release("users", second, early=True)
    with Writer(tmp_path, served) as writer:
        wait_until(
            lambda: (
                writer.program.get("/status") is not None
                and "out of order" in (writer.status()["problem"] or "")
            ),
            "the writer says why",
        )
        assert not writer.artifacts()
        served.release("users", first)
        served.release("users", second)
        served.look()
        writer.program.wait_ready()
        writer.wait_head(served.position)
        writer.assert_equal()


@pytest.mark.parametrize(
    ("in_turn", "early"),
    [(put(3, "first"), put(4, "last")), (put(30, "came"), delete(30))],
    ids=["changes", "nothing in all"],
)
def test_no_artifact_ends_within_where_other_tables_are_cut(
    tmp_path: Path, served: Served, in_turn: Change, early: Change
) -> None:
    served.add("orders")
    served.stop()
    served.start()
    with Writer(tmp_path, served, "users", "orders", interval="3s") as writer:
        writer.program.wait_ready()
        writer.wait_head(served.commit("users", put(1, "before")))
        served.commit("users", put(2, "in order"))
        (first,) = served.backlog("users", [in_turn])
        (middle,) = served.backlog("orders", [put(1, "middle")])
        (last,) = served.backlog("users", [early])
        served.release("users", last, early=True)
        served.release("users", first)
        served.release("orders", middle)
        served.look()
        # Here users is to be cut, too, as soon as its stream has passed it.
        writer.wait_head(middle.positions[-1], "orders")
        served.release("users", last)
        served.look()
        writer.wait_head(last.positions[-1])
        writer.assert_equal("orders")
        writer.assert_equal("users")
