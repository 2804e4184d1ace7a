"""Keys as Go's %v prints them: compared with what Go 1.25 printed (fmt.Printf("%v", x))."""

import pytest

from laredo_model import key
from laredo_model.errors import BadLine

PRINTED = {
    "0": "0",
    "7": "7",
    "14": "14",
    "100000": "100000",
    "999999": "999999",
    "1000000": "1e+06",
    "1000001": "1.000001e+06",
    "1234567": "1.234567e+06",
    "12345678.5": "1.23456785e+07",
    "20000000": "2e+07",
    "100000.5": "100000.5",
    "1e20": "1e+20",
    "1e21": "1e+21",
    "123456789012345680000": "1.2345678901234568e+20",
    "0.1": "0.1",
    "0.0001": "0.0001",
    "0.00001": "1e-05",
    "0.00012345": "0.00012345",
    "1.5e-7": "1.5e-07",
    "-2": "-2",
    "-1000001": "-1.000001e+06",
    "9007199254740993": "9.007199254740992e+15",
    "true": "true",
    "null": "<nil>",
    '"a \\u00e9 \\" b"': 'a é " b',
    '["a",1]': "[a 1]",
    '{"b":1,"a":null}': "map[a:<nil> b:1]",
}


@pytest.mark.parametrize(("json", "printed"), PRINTED.items())
def test_one_column(json: str, printed: str) -> None:
    assert key.go_key_of_line(f'{{"v":0,"k":{json}}}'.encode(), ["k"]) == printed.encode()


def test_several_columns_in_the_key_s_order() -> None:
    line = b'{"no":1000001,"region":"r2","v":null}'
    assert key.go_key_of_line(line, ["region", "no"]) == b"[r2 1.000001e+06]"
    assert key.go_key_of_line(line, ["no", "region"]) == b"[1.000001e+06 r2]"


def test_what_is_no_row() -> None:
    with pytest.raises(BadLine):
        key.go_key_of_line(b"[1]", ["id"])
