"""The writer's status page, as a parser reads it from the real program."""

from __future__ import annotations

from pathlib import Path

from tests.support.page import Element, page_of
from tests.support.processes import eventually, wait_until
from tests.support.writer.served import Served, put
from tests.support.writer.writing import ReadyWriter, Writer


def page(writer: Writer) -> Element:
    return page_of(writer.program.get("/"))


def facts(section: Element) -> dict[str, str]:
    names, values = section.all("dt"), section.all("dd")
    return {name.text: value.text for name, value in zip(names, values, strict=True)}


def chain(section: Element) -> list[list[str]]:
    """Of each epoch, newest first: its artifacts, without sizes and times."""
    return [
        [" ".join(link.text.split()[:3]) for link in epoch.all("li")]
        for epoch in section.all("ol", "chain")
    ]


def test_the_page_shows_a_tables_epochs_destinations_and_chain(
    tmp_path: Path, served: Served
) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    with ReadyWriter(tmp_path, served, destinations=places) as writer:
        writer.wait_head(served.commit("users", put(1, "x")))
        writer.wait_head(served.commit("users", put(2, "x"), put(3, "x")))

        def shown() -> Element:
            return page(writer).section("public.users following")

        # The page shows the manifest that is committed everywhere: the head comes first.
        eventually(lambda: chain(shown()), [["base 20 rows", "diff 1 row", "diff 2 rows"]])
        section = shown()
        assert facts(section)["epoch"] == "1" and facts(section)["rows"] == "20"
        states = [row.all("td")[0].text for row in section.all("table")[0].all("tr")[1:]]
        assert states == ["caught up", "caught up"]
        assert writer.post("/snapshot?wait=true").status_code == 200
        section = page(writer).section("public.users following")
        assert facts(section)["epoch"] == "2"
        assert chain(section) == [["base 20 rows"], ["base 20 rows", "2 diffs"]]
        for number in range(100, 114):
            writer.wait_head(served.commit("users", put(number, "x")))
        newest = ["base 20 rows", "2 more diffs", *["diff 1 row"] * 12]
        eventually(lambda: chain(page(writer).section("public.users"))[0], newest)


def test_a_destination_that_is_unavailable_is_named_in_plain_words(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        (tmp_path / "archive").rename(tmp_path / "renamed")
        (tmp_path / "archive").touch()
        served.commit("users", put(1, "x"))
        wait_until(lambda: writer.status()["destinations"][0]["problem"], "it is missed")
        shown = page(writer)
        problem = writer.status()["destinations"][0]["problem"]
        assert "public.users: " in shown.section("Not ready").text
        section = shown.section("public.users holding")
        assert "unavailable" in section.all("table")[0].text and problem in section.text
        (tmp_path / "archive").unlink()
        (tmp_path / "renamed").rename(tmp_path / "archive")
        writer.program.wait_ready()
