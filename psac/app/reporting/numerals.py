"""Numbers as a person reads them.

>>> percent(0.86934), count(60000), rounded(0.0123456), power(1.67e-6)
('86.9\\u202f%', '60,000', '0.0123', '1.67e-6')
>>> epsilon(2.99918), epsilon(3.00001), epsilon(float("inf")), delta(1 / 300_000), delta(1e-5)
('3.00', '3.01', 'infinite', '3.34e-6', '1e-5')
"""

import math

SPACE = "\N{NARROW NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}{SPACE}%"


def count(number: float) -> str:
    return f"{number:,.0f}"


def rounded(value: float, digits: int = 3) -> str:
    """Rounded to significant digits, without an exponent if that is short."""
    if not math.isfinite(value):
        return str(value)
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return power(value, digits)
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e" in text or abs(value) >= 1000 else text


def power(value: float, digits: int = 3) -> str:
    """In scientific notation without trailing zeros: 1e-5."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"


def epsilon(value: float) -> str:
    """With two decimals, rounded up so that it is still guaranteed."""
    if not math.isfinite(value):
        return "infinite"
    # Values within 1e-9 of a hundredth are rounding errors.
    return f"{math.ceil(100 * value - 1e-7) / 100:.2f}"


def delta(value: float) -> str:
    """With three digits, rounded up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return power(math.ceil(value / unit - 1e-7) * unit)


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}{SPACE}h {minutes:02d}{SPACE}min"
    return f"{minutes}{SPACE}min {rest:02d}{SPACE}s"


def plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"
