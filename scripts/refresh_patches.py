"""Makes the series in patches/ anew from the hook definitions in the package; see --help."""

import sys

from patching.refresh import main
from patching.trouble import told

if __name__ == "__main__":
    sys.exit(told(main))
