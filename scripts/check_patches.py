"""Checks the patches against the package and against PyTorch: `make check-patches`, `make check-patches-all`."""

import sys

from patching.check import main
from patching.trouble import told

if __name__ == "__main__":
    sys.exit(told(main))
