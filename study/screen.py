"""Makes text from outside (a judge's, an endpoint's) safe to print on a terminal, and says which
of it a spreadsheet would run."""

from __future__ import annotations

FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""How a text begins that a spreadsheet may take for a formula; the last four are full-width."""
_KEPT = "\n\t"
_HIDDEN = (*range(0x20), *range(0x7F, 0xA0))
_TURNING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
"""What reverses the reading order, ends lines or cannot be seen."""
_SPELLED = {code: f"\\x{code:02x}" for code in _HIDDEN if chr(code) not in _KEPT} | {
    code: f"\\u{code:04x}" for code in (*_TURNING, *range(0xD800, 0xE000))
}


def visible(text: str) -> str:
    """``text`` with everything spelled out that a terminal would obey or could not print."""
    return text.translate(_SPELLED)
