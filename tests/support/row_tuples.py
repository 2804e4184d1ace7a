"""Rows as pgoutput sends them: of every rule of the format, and drawn ones."""

from struct import pack

from hypothesis import strategies as st

from laredo_model.column import TypeInfo

TYPES = {
    "int8": TypeInfo(20, "int8"),
    "oid": TypeInfo(26, "oid"),
    "text": TypeInfo(25, "text"),
    "numeric": TypeInfo(1700, "numeric"),
    "float8": TypeInfo(701, "float8"),
    "bool": TypeInfo(16, "bool"),
    "timestamptz": TypeInfo(1184, "timestamptz"),
    "timestamp": TypeInfo(1114, "timestamp"),
    "jsonb": TypeInfo(3802, "jsonb"),
    "json": TypeInfo(114, "json"),
    "uuid": TypeInfo(2950, "uuid"),
    "int2vector": TypeInfo(22, "int2vector"),
    "text[]": TypeInfo(1009, "_text", element=TypeInfo(25, "text")),
}

_STAMPS = ["2024-02-29 10:00:00", "10000-01-01 00:00:00.5", "0044-03-15 10:00:00"]

SAMPLES = {
    "text": ["", "a", 'tn"\\', "\u00e9\U0001f600\u2028", "\x7f\x1f\n"],
    "int8": ["0", "-9223372036854775808", "116"],
    "oid": ["4294967295"],
    "numeric": ["1.00", "NaN", "-Infinity", "9" * 300],
    "float8": ["1e+15", "-0", "NaN", "Infinity", "-Infinity", "1e-05"],
    "bool": ["t", "f"],
    "timestamptz": ["infinity", *(f"{stamp}+00" for stamp in _STAMPS), f"{_STAMPS[2]}+00 BC"],
    "timestamp": ["-infinity", *_STAMPS, f"{_STAMPS[2]} BC"],
    "jsonb": ['{"a": "tn\\nu"}', "null"],
    "json": ['{"a":\n 1}', "[]", "[" * 5000 + "]" * 5000],
    "int2vector": ["", "1 2"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "text[]": ["{}", '{a,"b,c",NULL}', "[2:3]={t,n}"],
}

_STAMP = b"2024-02-29 10:00:00"
HOSTILE = [
    *(b"", b'"', b'""', b"\\", b'"\\', b'"a\\q"', b"\x02", b"\0", b"\x01", b"\xff", b"\xc3"),
    b"\n\r",
    *(b"NaN", b"y", b"N", b"t\0\0", b"true", b"null", b"{", b"{a}", b'{"a', b'{"\\', b"[1:2]={1"),
    *(_STAMP, _STAMP + b"+00", _STAMP + b"+00 BC", _STAMP + b" +00", b"2024-02-29 +00", b"0" * 10),
    *(_STAMP + b"+00\n", _STAMP + b'"', b"2024-02-29 ", b"+00", b"2024-02-29T10:00:00+00"),
]
"""Texts that PostgreSQL never sends."""

# What kinds and lengths look like, and lengths on both sides of a byte's and of two bytes' end.
_LENGTHS = [0, 1, 28, 110, 116, 117, 255, 256, 29_696, 65_535, 65_536]

_texts = st.one_of(
    st.text(st.sampled_from('tnu "\\\n\x01é\U0001f600'), max_size=12),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=8),
    st.sampled_from(_LENGTHS).map(lambda size: "t" * size),
)

NULL, UNCHANGED = object(), object()


@st.composite
def drawn_rows(draw: st.DrawFn) -> tuple[list[str], list[list[object]]]:
    """Types, and rows of them: a value, a null, or an unchanged TOAST value."""
    types = ["text", *draw(st.lists(st.sampled_from(list(TYPES)), max_size=5))]
    values = {name: _texts if name == "text" else st.sampled_from(SAMPLES[name]) for name in types}
    absent = st.sampled_from([NULL, UNCHANGED])
    row = st.tuples(
        values["text"], *(st.one_of(values[name], values[name], absent) for name in types[1:])
    ).map(list)
    return types, draw(st.lists(row, min_size=1, max_size=6))


def tuple_of(row: list[object]) -> bytes:
    """TupleData."""
    columns = []
    for value in row:
        if isinstance(value, str):
            encoded = value.encode()
            columns.append(b"t" + pack(">I", len(encoded)) + encoded)
        else:
            columns.append(b"n" if value is NULL else b"u")
    return pack(">H", len(row)) + b"".join(columns)
