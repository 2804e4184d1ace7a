"""Readiness in the log: a line for each state, however often and with whatever text it is seen."""

from structlog.testing import capture_logs

from laredo_fanout.app.logs import ReadinessLog


def refused(attempt: int) -> list[str]:
    return [f"table public.t{n}: no usable replica identity, attempt {attempt}" for n in range(60)]


def test_problems_with_ever_other_numbers_are_one_line() -> None:
    with capture_logs() as logs:
        readiness = ReadinessLog(0.0)
        for turn in range(1200):
            # At times the stream isn't connected.
            more = ["source pg: not connected yet"] if turn % 5 == 0 else []
            readiness.note([*more, *refused(turn)], turn / 20)
        readiness.note([], 61.0)
    assert [line["event"] for line in logs] == ["server not ready", "server ready"]
    assert len(logs[0]["problems"]) + logs[0]["others"] == 61
    assert len(logs[0]["problems"]) == 10 and logs[1]["seconds"] == 61.0


def test_a_new_problem_is_logged_and_an_old_one_is_not_repeated() -> None:
    with capture_logs() as logs:
        readiness = ReadinessLog(0.0)
        readiness.note(["one"], 0.0)
        readiness.note(["one", "another"], 0.5)
        readiness.note(["one", "another"], 2.0)
        readiness.note(["another"], 3.0)
        readiness.note([], 4.0)
        readiness.note(["one"], 100.0)
    shown = [(line["event"], line.get("problems")) for line in logs]
    assert shown == [
        ("server not ready", ["one"]),
        ("server not ready", ["another"]),
        ("server ready", None),
        ("server not ready", ["one"]),
    ]


def test_a_server_that_is_ready_and_not_ready_in_turns_is_quiet_in_time() -> None:
    with capture_logs() as logs:
        readiness = ReadinessLog(0.0)
        for turn in range(1200):
            readiness.note(refused(turn) if turn % 2 else [], turn / 20)
    assert len(logs) < 20
