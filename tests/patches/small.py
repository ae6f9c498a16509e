"""A PyTorch of a few lines, with a series of its own: what the tests of applying and reverting change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scripts.patching import apply, series, target
from scripts.patching.definitions import REGISTRY_FILE
from scripts.patching.series import State
from scripts.patching.target import Target

SMALL_FILES = {
    REGISTRY_FILE: "import contextlib\nfrom collections.abc import Callable\n\nHOOKS = []\n",
    "torch/_inductor/compile_fx.py": (
        "from . import config\nfrom .graph import GraphLowering\nfrom .ir import IRNode\n\n\n"
        "def cudagraphify(model):\n    return model\n\n\n"
        "@config.patch\n@decorator\ndef compile_fx(model):\n    return 1\n"
    ),
    "torch/_inductor/output_code.py": (
        "from . import config\n\n\ndef maybe_handle_backward_generation(graph):\n    \f\n    return graph  \n\n\n"
        "class Other:\n    def post_compile(self):\n        pass\n\n\n"
        "class CompiledFxGraph:\n    def post_compile(self):\n        pass\n"
    ),
    "torch/_inductor/untouched.py": "pass\n",
    "torch/version.py": "__version__ = '2.14.0+cu130'\n",
}


@dataclass(frozen=True)
class Small:
    """A PyTorch of a few lines, and the folder with its patches."""

    root: Path
    patches: Path

    @property
    def target(self) -> Target:
        return target.find(str(self.root))

    def apply(self) -> list[str]:
        return list(apply.brought_to(State.PATCHED, self.target, self.patches))

    def revert(self) -> list[str]:
        return list(apply.brought_to(State.PRISTINE, self.target, self.patches))

    def contents(self) -> dict[str, str]:
        """Every file there is, journals and locks included."""
        files = sorted(path for path in self.root.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes().decode() for path in files}

    def states(self) -> set[State]:
        return {file.state(self.root) for file in series.load("2.14", self.patches).files}

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(text.encode())
