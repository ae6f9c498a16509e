"""Reasons are short, the same on every machine, and tell the error rather than the advice that follows it."""

from __future__ import annotations

from scripts.bench import facts
from scripts.bench.reasons import LONGEST, brief, last_words
from scripts.bench.worker import one_line

ADVICE = 'Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace. For even more developer context, set TORCH_LOGS="x"'


def test_paths_begin_at_the_checkout():
    assert brief(f"OSError: no {facts.ROOT}/scripts/bench/a.py") == "OSError: no scripts/bench/a.py"
    assert one_line(OSError(f"no {facts.ROOT}/a\nnor b")) == "OSError: no a nor b"


def test_advice_is_cut_off_unless_there_is_nothing_else():
    assert brief(f"RuntimeError: two devices\n\n{ADVICE}") == "RuntimeError: two devices"
    assert brief("CUDA error: invalidated Search for `cudaErrorX' in https://docs") == "CUDA error: invalidated"
    assert brief(ADVICE) == ADVICE
    assert len(brief("x" * 1000)) == LONGEST


def test_an_exception_is_told_rather_than_what_is_printed_after_it():
    log = ["Traceback (most recent call last):", '  File "a.py"', "torch._dynamo.exc.Unsupported: no", "", ADVICE, ""]
    assert last_words(log, raised=True) == "torch._dynamo.exc.Unsupported: no"
    assert last_words(["ValueError: handled", "Segmentation fault"], raised=False) == "Segmentation fault"
    assert last_words(["all went well"], raised=True) == "all went well"
    assert last_words(["", " "], raised=True) == "no output"
