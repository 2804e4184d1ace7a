"""Floats as PostgreSQL prints them.

The shortest digits that read back as the same number, with an exponent from
10^15 up (10^6 for float4) and below 10^-4
(float_to_shortest_decimal_bufn and double_to_shortest_decimal_bufn in src/common).
"""

import math

FLOAT8_DIGITS = 15
FLOAT4_DIGITS = 6


def text(number: float, digits: int = FLOAT8_DIGITS) -> bytes:
    """``number`` as PostgreSQL prints it, as JSON; NaN and the infinities are JSON strings.

    In rare cases PostgreSQL prints one digit more than is needed: whoever must
    have its very text compares (``struct_rows`` does).
    """
    if not math.isfinite(number):
        name = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        return f'"{name}"'.encode()
    shortest = repr(number)
    if number == 0 or 1e-4 <= abs(number) < 10.0**digits:
        return shortest.removesuffix(".0").encode()
    return _with_exponent(shortest)


def _with_exponent(shortest: str) -> bytes:
    mantissa, _, exponent = shortest.partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    rest = "." + digits[1:] if len(digits) > 1 else ""
    power = point - 1
    return f"{sign}{digits[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}".encode()
