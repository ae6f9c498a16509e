"""Where things lie in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PATCHES = ROOT / "patches"
