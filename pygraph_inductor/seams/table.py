"""The one table of private names of torch that we replace or rely on, with what each looked like in every version.

`install.py` checks it against the installed torch before anything of ours is used. A difference between versions is
an entry here, not a branch in the code.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# The releases that every row was read against.
VERSIONS = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
MINORS = tuple(version.rpartition(".")[0] for version in VERSIONS)

# When this module has been imported, so have all others of the table, or can be.
ENTRY = "torch._inductor.compile_fx"


def _same(parameters: str) -> dict[str, str]:
    return dict.fromkeys(MINORS, parameters)


def _since(**changes: str) -> dict[str, str]:
    """`v2_11="a, b", v2_14="a, b, c"`: what the parameters are from each named version on."""
    known, parameters = {}, ""
    for minor in MINORS:
        parameters = changes.get("v" + minor.replace(".", "_"), parameters)
        known[minor] = parameters
    return known


@dataclass(frozen=True)
class Row:
    """One name: where it is, what its parameters are per minor version, and what takes its place.

    `replacement` names a function of ours that gets the stock function and returns ours ("module:function"); None for
    a name that we call, subclass or override. `only_if_imported`: called only where others have imported the module,
    so it is not imported to be looked at.
    """

    module: str
    name: str
    parameters: dict[str, str]
    replacement: str | None = None
    only_if_imported: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"

    def owner_and_attribute(self) -> tuple[Any, str]:
        """The module or class that holds the name. Raises AttributeError or ImportError if it is gone."""
        owner: Any = importlib.import_module(self.module)
        *path, attribute = self.name.split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, attribute

    def found(self) -> Callable[..., Any]:
        """What the installed torch has there."""
        owner, attribute = self.owner_and_attribute()
        return getattr(owner, attribute)


_COMPILE_FX = "model_, example_inputs_, inner_compile, config_patches, decompositions, ignore_shape_env"
_CUDAGRAPHIFY = (
    "model, static_input_idxs, *, device_index, stack_traces, is_backward, is_inference, constants, placeholders, "
    "mutated_input_idxs"
)
_CODEGEN = "torch._inductor.codegen"
_SEAMS = "pygraph_inductor.seams"

ROWS = (
    Row(
        ENTRY,
        "compile_fx",
        _since(v2_11=_COMPILE_FX, v2_12=_COMPILE_FX + ", compile_region_name"),
        f"{_SEAMS}.compile_fx:wrap",
    ),
    Row(
        ENTRY,
        "cudagraphify",
        _since(v2_11=_CUDAGRAPHIFY, v2_14=_CUDAGRAPHIFY + ", kernel_free_cudagraph, user_visible_output_idxs"),
        f"{_SEAMS}.cudagraphify:wrap",
    ),
    Row(
        "torch._inductor.output_code",
        "CompiledFxGraph.post_compile",
        _same("self, example_inputs, constants, graph_kwargs"),
        f"{_SEAMS}.post_compile:wrap",
    ),
    Row(
        "torch._inductor.output_code",
        "maybe_handle_backward_generation",
        _same("compiled_graph, boxed_forward_device_index"),
        f"{_SEAMS}.backward_generation:wrap",
    ),
    Row(ENTRY, "get_input_idxs_to_check", _same("inputs, static_input_idxs")),
    Row(
        "torch._inductor.utils",
        "align_inputs_from_check_idxs",
        _same("model, inputs_to_check, mutated_input_idxs"),
    ),
    Row("torch._inductor.utils", "set_customized_partition_wrappers", _same("wrapper")),
    # Importing it costs every backward of the process: it leaves two objects with the thread, which autograd's engine
    # carries along from node to node.
    Row(
        "torch._inductor.cudagraph_trees",
        "get_manager",
        _same("device_index, create_if_none_exists"),
        only_if_imported=True,
    ),
    Row("torch._inductor.custom_graph_pass", "get_hash_for_files", _same("paths, extra")),
    Row(f"{_CODEGEN}.common", "init_backend_registration", _same("")),
    Row(
        f"{_CODEGEN}.common",
        "register_backend_for_device",
        _same(
            "device, device_scheduling, device_wrapper_codegen, device_cpp_wrapper_codegen, device_fx_wrapper_codegen, "
            "device_custom_pass, device_custom_config"
        ),
    ),
    Row(
        "torch._inductor.scheduler",
        "Scheduler.get_graph_partition_signature",
        _same("self, partitions, skip_cudagraphs"),
    ),
    Row(
        f"{_CODEGEN}.wrapper",
        "PythonWrapperCodegen.create",
        _same("is_subgraph, subgraph_name, parent_wrapper, partition_signatures"),
    ),
    Row(f"{_CODEGEN}.wrapper", "PythonWrapperCodegen.__init__", _same("self")),
    Row(f"{_CODEGEN}.wrapper", "PythonWrapperCodegen.generate_after_suffix", _same("self, result")),
    Row(f"{_CODEGEN}.wrapper", "PythonWrapperCodegen.can_reuse", _same("self, input_buffer, output_buffer")),
    Row(f"{_CODEGEN}.wrapper", "PythonWrapperCodegen.codegen_free", _same("self, buffer")),
    Row(
        f"{_CODEGEN}.wrapper",
        "SubgraphPythonWrapperCodegen.__init__",
        _same("self, subgraph_name, parent_wrapper, partition_signatures"),
    ),
    Row(f"{_CODEGEN}.wrapper", "FreeLine.__init__", _same("self, wrapper, node")),
)


def is_being_imported(module: str) -> bool:
    """Whether a module's body is running (importlib keeps that in its spec)."""
    return bool(getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False))


def minor_of(version: str) -> str:
    """ "2.14" of "2.14.1+cu130" or "2.14.0.dev20260101": builds of one minor version are told apart by signatures."""
    return ".".join(version.split("+")[0].split(".")[:2])


def parameters_of(function: Callable[..., Any]) -> str:
    """The names and kinds of a function's parameters, as the table writes them."""
    words: list[str] = []
    keyword_only = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append("*" + parameter.name)
            keyword_only = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            words.append("**" + parameter.name)
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
                words.append("*")
                keyword_only = True
            words.append(parameter.name)
    return ", ".join(words)


@dataclass(frozen=True)
class Difference:
    """A row that the installed torch does not match. `found` is None if the name is gone."""

    row: Row
    expected: str
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.row.full_name} is gone"
        return f"{self.row.full_name} takes ({self.found}) where ({self.expected}) was expected"


def differences(version: str) -> Iterator[Difference]:
    """The rows that do not match. An unknown version is held against the newest known one."""
    minor = minor_of(version)
    for row in ROWS:
        if row.module != ENTRY and is_being_imported(row.module):
            continue  # it is what imports Inductor right now; nothing of it exists yet
        if row.only_if_imported and row.module not in sys.modules:
            continue
        expected = row.parameters.get(minor, row.parameters[MINORS[-1]])
        try:
            found = parameters_of(row.found())
        except (AttributeError, ImportError):
            yield Difference(row, expected, None)
            continue
        if found != expected:
            yield Difference(row, expected, found)
