"""Runs python with a patched torch in a throw-away copy of this environment: `make test PATCHED=1`; see --help."""

import sys

from patching.overlay import main
from patching.trouble import told

if __name__ == "__main__":
    sys.exit(told(main))
