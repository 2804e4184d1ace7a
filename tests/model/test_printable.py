"""Foreign text that a terminal may be shown."""

import sys
import unicodedata

import pytest

from laredo_service.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("public.users", "public.users"),
        ("Straße, 表, naïve é", "Straße, 表, naïve é"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\x9b31mb", r"a\x9b31mb"),
        ("a\nb\tc\r\x00\x7f", r"a\nb\tc\r\x00\x7f"),
        ("user\u202eexe.gpj", r"user\u202eexe.gpj"),
        ("zero\u200bwidth\ufeff\u2028", r"zero\u200bwidth\ufeff\u2028"),
        ("lone\udc9b", r"lone\udc9b"),
        ("\U000e0001tag", r"\U000e0001tag"),
        (r"back\slash", r"back\slash"),
    ],
)
def test_what_a_terminal_obeys_is_shown_as_text(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_nothing_that_it_lets_through_controls_a_terminal() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    shown = printable(everything)
    left = {unicodedata.category(character) for character in set(shown)}
    assert left.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})
    shown.encode()  # a lone surrogate would end the program that prints it
