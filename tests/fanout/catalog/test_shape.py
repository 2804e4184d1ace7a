"""The sentence that tells why a table is copied again."""

from typing import Any

import pytest

from laredo_fanout.pg_catalog.shape import Shape, ShapeColumn

ID = ShapeColumn("id", 20, -1, False)
TEXT = ShapeColumn("v", 25, -1, True)
BEFORE = Shape(16400, "public", "t", (ID, TEXT), ("id",), None, 16500)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"oid": 16401}, "it was dropped and created again"),
        ({"name": "u"}, "it was renamed from public.t"),
        ({"columns": (ID,)}, "its columns changed (removed: v)"),
        (
            {"columns": (ID, TEXT._replace(type_oid=20), TEXT._replace(name="w"))},
            "its columns changed (added: w; altered: v)",
        ),
        ({"columns": (TEXT, ID)}, "its columns changed (another order)"),
        ({"key": ("v",)}, "its key changed from id to v"),
        ({"append_only": True}, "append_only was changed"),
        ({"row_filter": "(id > 1)"}, "the publication's row filter changed"),
        ({"membership": 16501}, "it left the publication and came back"),
    ],
)
def test_the_difference_names_what_changed(changed: dict[str, Any], told: str) -> None:
    assert BEFORE.difference(BEFORE._replace(**changed)) == told
