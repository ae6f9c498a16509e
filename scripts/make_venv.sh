#!/usr/bin/env bash
# Makes or completes a virtual environment: make_venv.sh FOLDER TORCH_REQUIREMENT [EXTRA]
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 torch=$2 extra=${3:-}

if ! [ -x "$folder/bin/python" ]; then
    python3 -c 'import sys; sys.exit("python3 must be 3.10 or newer" if sys.version_info < (3, 10) else 0)'
    # A torch that python3 already has is used from there (if it meets the requirement): no second 5 GB.
    shared= active=
    if python3 -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
        active=$(python3 -c 'import sys, sysconfig as s; print(s.get_path("purelib") if sys.prefix != sys.base_prefix else "")')
        [ -n "$active" ] || shared=--system-site-packages
    fi
    python3 -m venv $shared "$folder"
    if [ -n "$active" ]; then  # an active environment's, which the option above would pass over
        packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        echo "import site; site.addsitedir('$active')" > "$packages/active-environment.pth"
    fi
fi
# In one go, or an extra that pins its own torch (torchvision does) could replace the one that was asked for.
"$folder/bin/python" -m pip install --quiet "$torch" --editable ".${extra:+[$extra]}"
