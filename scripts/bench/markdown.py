"""Tables and sizes as the pages write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text."""
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("|" + "|".join("---" if n < left else "---:" for n in range(len(heads))) + "|")
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def human(value: float | None) -> str:
    return "-" if value is None else human_bytes(value)


def human_bytes(value: float) -> str:
    """Bytes in decimal units, as the paper writes them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"
