"""Device copies of CPU parameters and buffers that are kept from call to call, and made anew when the contents changed.

`transform/mirrors.py` gives a compiled function one more input for each; `following` fills them in before each call.

A mirror is handed out only after its source was compared, byte by byte, with what the mirror was made from. Versions
do not show writes through `.data`, numpy or another process, and comparing costs less than an upload of any size:
about a microsecond for 10 KB. So whose memory it is does not matter for being right, only for finding the mirror.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pygraph_inductor.replay.uploads import upload

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_compare.restype = ctypes.c_int

# Mirrors that an input may have had made in vain; what changes in most calls is uploaded.
_IN_VAIN, _HITS_FOR_ONE = 64, 4


@dataclass(eq=False)
class _Mirror:
    """A device copy. `source` holds the bytes it was made from; nobody writes to either of them."""

    tensor: torch.Tensor
    source: torch.Tensor
    address: int  # of `source`
    nbytes: int
    stream: int
    copied: torch.cuda.Event | None
    dies: weakref.finalize[Any, Any] | None = None


# Per device: address, dtype, size and strides of the source -> its mirror. An address may be used again after its
# tensor is gone, and then the contents tell. Shared by all functions: forward and backward have one mirror.
_mirrors: dict[torch.device, dict[Hashable, _Mirror]] = {}


@dataclass
class _Seat:
    """One input of a function that has a mirror."""

    position: int
    made: int = 0
    hits: int = 0

    def pays(self) -> bool:
        return self.made <= _IN_VAIN + self.hits // _HITS_FOR_ONE


def following(
    run: Callable[[list[Any]], Any], positions: Sequence[int], device: torch.device, limit: int
) -> Callable[[list[Any]], Any]:
    """`run`, given behind its inputs the device copies of those at `positions`.

    The mirrors on one device take `limit` bytes at most. What does not fit is uploaded in every call.
    """
    seats = [_Seat(position) for position in positions]

    def call(inputs: list[Any]) -> Any:
        inputs += _copies([inputs[seat.position] for seat in seats], seats, device, limit)
        return run(inputs)

    return call


def held(device: torch.device) -> int:
    """The bytes that mirrors take on a device now."""
    return sum(mirror.nbytes for mirror in list(_mirrors.get(device, {}).values()))


def _copies(
    hosts: Sequence[torch.Tensor], seats: Sequence[_Seat], device: torch.device, limit: int
) -> list[torch.Tensor]:
    on_device = device.type == "cuda"
    if on_device and torch.cuda.is_current_stream_capturing():
        return _uploaded(hosts, device)  # as the program would have had it; a graph of the user has no mirrors
    stream = _current_stream(device.index) if on_device else 0
    known = _mirrors.setdefault(device, {})
    found: list[torch.Tensor | None] = []
    missing = []
    for host, seat in zip(hosts, seats, strict=True):
        mirror = _of(host, seat, known, device, limit)
        if mirror is not None and mirror.stream != stream:
            _share_with_current_stream(mirror, device)
        if mirror is None:
            missing.append(host)
        found.append(None if mirror is None else mirror.tensor)
    if missing:
        uploaded = iter(_uploaded(missing, device))
        return [next(uploaded) if one is None else one for one in found]
    return found  # type: ignore[return-value]


_current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)


def _of(
    host: torch.Tensor, seat: _Seat, known: dict[Hashable, _Mirror], device: torch.device, limit: int
) -> _Mirror | None:
    """The mirror of a tensor as it is now; None if it is not to have one."""
    if type(host) not in (torch.Tensor, torch.nn.Parameter):
        return None
    address = host.data_ptr()
    key = address, host.dtype, host.size(), host.stride()
    mirror = known.get(key)
    if mirror is not None and _compare(mirror.address, address, mirror.nbytes) == 0:
        seat.hits += 1
        return mirror
    if not seat.pays():
        return None
    kept = held(device) - (mirror.nbytes if mirror is not None else 0)
    if kept + host.nbytes > limit or not _can_be_mirrored(host):
        return None
    seat.made += 1
    try:
        made = _made(host, device)
    except RuntimeError:  # no memory left, on the device or to be pinned
        return None
    if mirror is not None and mirror.dies is not None:
        mirror.dies.detach()
    made.dies = weakref.finalize(host.untyped_storage(), _forget, known, key, weakref.ref(made))
    made.dies.atexit = False
    known[key] = made
    return made


def _can_be_mirrored(host: torch.Tensor) -> bool:
    """Whether a tensor's memory holds its elements, all of them, and nothing else."""
    return (
        host.device.type == "cpu"
        and host.layout is torch.strided
        and host.nbytes > 0
        and bool(host.storage_offset() * host.itemsize + host.nbytes <= host.untyped_storage().nbytes())
        and not (host.is_quantized or host.is_conj() or host.is_neg() or host._is_zerotensor())
        and torch.empty_like(host, device="meta").stride() == host.stride()
    )


def _made(host: torch.Tensor, device: torch.device) -> _Mirror:
    """What is compared later is what was copied, also if somebody writes to the source meanwhile."""
    on_device = device.type == "cuda"
    with torch.inference_mode(False), torch.no_grad():
        source = torch.empty(host.nbytes, dtype=torch.uint8, pin_memory=on_device)
        ctypes.memmove(source.data_ptr(), host.data_ptr(), host.nbytes)
        tensor = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=device)
        flat = torch.empty(0, dtype=torch.uint8, device=device)
        flat.set_(tensor.untyped_storage(), 0, (host.nbytes,), (1,)).copy_(source, non_blocking=True)
    stream, copied = 0, None
    if on_device:
        current = torch.cuda.current_stream(device)
        copied = torch.cuda.Event()
        copied.record(current)
        stream = current.cuda_stream
    return _Mirror(tensor, source, source.data_ptr(), host.nbytes, stream, copied)


def _share_with_current_stream(mirror: _Mirror, device: torch.device) -> None:
    """Another stream reads it after the copy is done, and its memory is not given away while that stream reads."""
    current = torch.cuda.current_stream(device)
    if mirror.copied is not None:
        current.wait_event(mirror.copied)  # asking whether it is done would break captures of other threads
    mirror.tensor.record_stream(current)


def _forget(known: dict[Hashable, _Mirror], key: Hashable, dead: weakref.ref[_Mirror]) -> None:
    mirror = dead()
    if mirror is not None and known.get(key) is mirror:
        del known[key]


def _uploaded(hosts: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    return upload([], hosts, device)
