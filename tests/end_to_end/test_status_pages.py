"""Both status pages in a real browser: kept fresh, harmless, readable on a phone and without a
script; and the button that asks for a new base, with the token and for nobody else's page."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.browser import Browser, browsing
from tests.support.postgres import Database
from tests.support.processes import Program, wait_until
from tests.support.writer.archiving_programs import Named, Programs, configured

pytestmark = pytest.mark.thorough

TOKEN = "s3cret"
HOSTILE = Named("public", "<script>alert(1)</script><img src=x onerror=alert(2)>", "hostile/")
"""Were its name not escaped, the browser would run it, or say what the policy forbade."""
TABLE = Named("public", "t", None)
PAGES = ("server", "writer")


@contextmanager
def running(directory: Path, database: Database, token: str | None = None) -> Iterator[Programs]:
    """Both programs with the tables, and the writer with a token if there is one."""
    with database.connect() as owner:
        for table in (TABLE, HOSTILE):
            owner.execute(f'CREATE TABLE "{table.table}" (id int PRIMARY KEY)')
            owner.execute(f'INSERT INTO "{table.table}" VALUES (1)')
    programs = configured(directory, database, [TABLE, HOSTILE])
    if token is not None:
        config = programs.writer.config
        secured = f'http {{ token = {token}, public = [health], host = "127.0.0.1"'
        config.write_text(config.read_text().replace('http { host = "127.0.0.1"', secured))
    with programs.running():
        yield programs


@contextmanager
def reading(directory: Path) -> Iterator[Browser]:
    """A browser; nothing that its pages did was forbidden, or ran where it shouldn't."""
    with browsing(directory / "browser") as browser:
        yield browser
        assert browser.dialogs == []


def epoch(programs: Programs) -> int:
    return programs.archive(TABLE).manifest.epoch


def press(browser: Browser) -> None:
    """Open the details of the table ``t``, if they aren't, and press its button."""
    browser.run("document.querySelector(\"a[href='?table=public.t']\").click()")
    button = "document.querySelector(\"button[data-post$='=public.t']\")"
    browser.wait(f"{button} !== null && !{button}.disabled")
    browser.run(f"{button}.click()")


def test_pages_are_kept_fresh_and_a_hostile_name_is_text(
    tmp_path: Path, database: Database
) -> None:
    with running(tmp_path, database) as programs, reading(tmp_path) as browser:
        for program, text in ((programs.server, "rows"), (programs.writer, "following")):
            browser.go(program.http + "/")
            shown = "document.getElementById('content').textContent"
            assert HOSTILE.table in browser.run(shown) and text in browser.run(shown)
            assert browser.run("document.querySelectorAll('main script, main img').length") == 0
            # Elements that aren't those of the first answer: the script has put them there.
            browser.run("document.querySelector('main h2').dataset.old = 'yes'")
            browser.wait("document.querySelector('main h2').dataset.old === undefined")
            browser.wait("document.title.endsWith(': ready')")
        assert browser.console == []
        origins = {request["url"].split("/")[2] for request in browser.requests}
        assert origins <= {p.http[7:] for p in (programs.server, programs.writer)} | {","}
        programs.writer.stop()
        browser.wait("document.body.classList.contains('stale')")
        assert "no answer since" in browser.run("document.getElementById('connection').textContent")


def test_what_a_page_may_not_do_is_seen(tmp_path: Path, database: Database) -> None:
    with running(tmp_path, database) as programs, reading(tmp_path) as browser:
        browser.go(programs.server.http + "/")
        browser.run(
            "document.querySelector('main').innerHTML = '<img src=x onerror=alert(3)>'",
        )
        wait_until(
            lambda: browser.run("1") and "Content Security Policy" in " ".join(browser.console),
            "the policy forbids it",
        )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_a_phone_and_a_desk_in_the_dark_and_in_the_light(
    tmp_path: Path, database: Database, width: int, dark: bool
) -> None:
    with running(tmp_path, database) as programs, reading(tmp_path) as browser:
        browser.resize(width, 844, dark=dark)
        for name, program in zip(PAGES, (programs.server, programs.writer), strict=True):
            browser.go(program.http + "/")
            assert browser.run("document.documentElement.scrollWidth") == width, name
            sum_of = "getComputedStyle(document.body).{}.match(/[0-9]+/g).map(Number)"
            ground = sum(browser.run(sum_of.format("backgroundColor"))[:3])
            ink = sum(browser.run(sum_of.format("color"))[:3])
            assert (ground < 150 and ink > 600) if dark else (ground > 600 and ink < 150)
            browser.screenshot(tmp_path / f"{name}.png")
            assert (tmp_path / f"{name}.png").stat().st_size > 20_000


def test_the_button_asks_for_a_base_with_the_token_that_is_typed(
    tmp_path: Path, database: Database
) -> None:
    with running(tmp_path, database, TOKEN) as programs, reading(tmp_path) as browser:
        browser.give_password(TOKEN)
        browser.go(programs.writer.http + "/")
        answers = "[...document.querySelectorAll('.action span')].map(e => e.textContent).join()"
        press(browser)
        browser.wait(f"{answers}.includes('Type the token first')")
        browser.run("document.getElementById('token').value = 'another'")
        press(browser)
        browser.wait(f"{answers}.includes('a token is needed')")
        assert epoch(programs) == 1
        browser.run(f"document.getElementById('token').value = '{TOKEN}'")
        press(browser)
        browser.wait(f"{answers}.includes('asked for at')")
        wait_until(lambda: epoch(programs) == 2, "the base")
        browser.wait("document.querySelector('main').textContent.includes('Epoch 2')")
        # It is kept nowhere: a page that is loaded again asks for it again.
        kept = "[document.cookie, localStorage.length, sessionStorage.length].join()"
        assert browser.run(kept) == ",0,0"
        browser.go(programs.writer.http + "/")
        assert browser.run("document.getElementById('token').value") == ""


def test_without_a_token_the_button_works_at_once(tmp_path: Path, database: Database) -> None:
    with running(tmp_path, database) as programs, reading(tmp_path) as browser:
        browser.go(programs.writer.http + "/")
        press(browser)
        wait_until(lambda: epoch(programs) == 2, "the base")
        assert browser.console == []


def test_a_button_that_gets_no_answer_is_free_again(tmp_path: Path, database: Database) -> None:
    with running(tmp_path, database) as programs, reading(tmp_path) as browser:
        browser.go(programs.writer.http + "/?table=public.t")
        os.kill(programs.writer.pid, signal.SIGSTOP)
        try:
            press(browser)
            answer = "document.querySelector('.action span').textContent"
            browser.wait(f"{answer}.startsWith('no answer within')")
            assert browser.run("document.querySelector('button[data-post]').disabled") is False
        finally:
            os.kill(programs.writer.pid, signal.SIGCONT)


def test_a_page_is_read_without_scripts(tmp_path: Path, database: Database) -> None:
    with running(tmp_path, database) as programs, reading(tmp_path) as browser:
        browser.disable_scripts()
        for program in (programs.server, programs.writer):
            browser.go(program.http + "/?table=public.t")
            loaded = browser.run("document.getElementById('connection').textContent")
            assert "loads itself again every 10 s" in loaded
            browser.wait(
                f"document.getElementById('connection')?.textContent !== {loaded!r}"
                " && document.readyState === 'complete'"
            )
        assert browser.run("document.querySelector('.action').innerText.includes('JavaScript')")
        assert browser.run("document.querySelector('button').disabled")


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_page_of_another_site_forces_no_snapshot(
    tmp_path: Path, database: Database, token: str | None
) -> None:
    with running(tmp_path, database, token) as programs, reading(tmp_path) as browser:
        if token is not None:
            browser.give_password(token)
            # From here on the browser remembers the password.
            browser.go(programs.writer.http + "/")
        with another_site(tmp_path / "site", programs.writer) as address:
            browser.go(address)
            browser.run("attack()")
        # Each was sent, and refused before anything was asked of the writer.
        assert [s for url, s in browser.answers if url == _snapshot(programs.writer)] == [403, 403]
        assert epoch(programs) == 1


def _snapshot(writer: Program) -> str:
    return f"{writer.http}/snapshot"


@contextmanager
def another_site(directory: Path, writer: Program) -> Iterator[str]:
    """A page of ``localhost``, which is another site than 127.0.0.1: it sends the request by
    script and as a form into a frame."""
    page = f"""<!doctype html><meta charset="utf-8">
<form id="form" method="post" action="{_snapshot(writer)}" target="frame"></form>
<iframe name="frame"></iframe>
<script>
async function attack() {{
  await fetch("{_snapshot(writer)}",
    {{method: "POST", mode: "no-cors", credentials: "include"}}).catch(() => 0);
  const loaded = new Promise((done) => (document.querySelector("iframe").onload = done));
  document.getElementById("form").submit();
  await loaded;
}}
</script>"""

    directory.mkdir()
    (directory / "index.html").write_text(page)
    handler = partial(SimpleHTTPRequestHandler, directory=str(directory))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
