"""Puts the patches into a PyTorch, or takes them out: `make apply-patches`, `make revert-patches`; see --help."""

import sys

from patching.apply import main
from patching.trouble import told

if __name__ == "__main__":
    sys.exit(told(main))
