"""The kernel of the tests on a GPU that sets conditions: assembled and linked here, where nothing can run it."""

from __future__ import annotations

import pytest

from tests.gpu.device_conditions import DECIDES, PTX

nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink")


@pytest.fixture(autouse=True)
def linker() -> None:
    try:
        nvjitlink.version()
    except RuntimeError as error:  # the library is missing
        pytest.skip(str(error))


def linked(ptx: str) -> bytes:
    options = ["-arch=sm_90"]
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, ptx.encode(), len(ptx), DECIDES)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    finally:
        nvjitlink.destroy(handle)


def test_kernel_that_sets_a_condition_needs_no_library() -> None:
    cubin = linked(PTX)
    assert cubin.startswith(b"\x7fELF") and f".text.{DECIDES}".encode() in cubin


def test_linker_does_not_take_every_name_for_one_of_the_driver() -> None:
    with pytest.raises(nvjitlink.nvJitLinkError):
        linked(PTX.replace("cudaGraphSetConditional", "cudaGraphSetNothing"))
