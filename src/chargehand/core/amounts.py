"""Amounts as people write them: durations such as `1h30m`, and plain numbers such as `2.50`."""

from __future__ import annotations

from chargehand.core.text import late_pattern

# The longest duration, in seconds.
LONGEST_SECONDS = 366 * 86400.0
# The largest sum of USD, and the largest count: far beyond any use, far below any overflow.
LARGEST_AMOUNT = 1_000_000
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_AMOUNT = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_DURATION = late_pattern("".join(f"(?:{_AMOUNT}{unit})?" for unit in _UNITS))
_NUMBER = late_pattern(_AMOUNT)


def parse_number(text: str) -> float | None:
    """Return a plain number of at least 0, or `None` if the text is not one."""
    # By itself float() also takes `nan`, `inf` and `1_0`.
    return float(text) if _NUMBER.fullmatch(text) else None


def parse_seconds(value: object) -> float | None:
    """Return a duration in seconds from a text (`90s`, `1h30m`, `90`) or a number; `None` for anything else.

    The caller checks the range. A number is clipped to twice `LONGEST_SECONDS`; NaN and everything negative become
    -1.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("-"):
            return None if parse_seconds(text[1:]) is None or text[1:2] == "-" else -1.0
        match = _DURATION.fullmatch(text)
        if not text or match is None:
            return parse_number(text)
        amounts = zip(match.groups(), _UNITS.values(), strict=True)
        return sum(float(amount) * size for amount, size in amounts if amount)
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Clipped first: an integer may have more digits than a float can hold. NaN becomes -1.
        return float(max(-1, min(value, 2 * LONGEST_SECONDS)))
    return None


def format_seconds(seconds: float) -> str:
    """Return a duration as a person writes it: `30m`, `1h30m`, `0.5s`."""
    rest = seconds
    out = ""
    for unit, size in (("h", 3600), ("m", 60)):
        if rest >= size:
            out += f"{int(rest // size)}{unit}"
            rest %= size
    return out + (f"{rest:g}s" if rest or not out else "")
