"""A client that asks which tables are served gets those that its token may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from laredo_fanout.client import Endpoint
from laredo_fanout.client.errors import Unauthenticated
from laredo_fanout.client.stream.stream import served_tables
from laredo_service.table_pattern import TableName
from tests.support.server.serving_world import running, with_tokens

USERS, ORDERS = TableName("public", "users"), TableName("public", "orders.of.2026")


async def test_the_tables_that_a_token_may_read_are_listed(tmp_path: Path) -> None:
    listener = with_tokens(tmp_path / "tokens", "all\none public.orders.of.2026\n")
    both = [".".join(USERS), ".".join(ORDERS)]
    async with running(tmp_path / "store", listener=listener, names=both) as world:
        address = f"127.0.0.1:{world.port}"
        assert await served_tables(Endpoint(address, token="all")) == {USERS, ORDERS}
        assert await served_tables(Endpoint(address, token="one")) == {ORDERS}
        with pytest.raises(Unauthenticated):
            await served_tables(Endpoint(address, token="none"))
