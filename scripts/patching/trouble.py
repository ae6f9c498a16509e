"""What went wrong, in words for the person at the terminal: printed without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable


class Trouble(Exception):
    """The message says what is wrong, where, and what can be done."""


def told(main: Callable[[], int]) -> int:
    """Run a command; trouble is printed, and the exit status says so."""
    try:
        return main()
    except Trouble as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
