"""What of the CUDA driver can be checked without a device: who may capture when."""

from __future__ import annotations

import contextlib
import threading
import time
from unittest import mock

import torch

from pygraph_inductor.driver import cuda


def test_threads_with_streams_of_their_own_capture_one_after_the_other(monkeypatch):
    """They share the stream of captures and the default generator, of which torch captures one at a time."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda **_: object())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", mock.Mock())
    monkeypatch.setattr(cuda, "supports_mapping", lambda _: True)
    monkeypatch.setattr(cuda, "_library_state", contextlib.nullcontext)
    monkeypatch.setattr(cuda, "CudaGraph", lambda graph: graph)
    monkeypatch.setattr(cuda.CudaDriver, "_capture_into", lambda self, graph, body, pool, generators: body())
    driver = cuda.CudaDriver(torch.device("cuda", 0))
    inside, most = [], []

    def body():
        inside.append(None)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()

    threads = [threading.Thread(target=driver.capture, args=(body, None, {})) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1, 1, 1]
