"""Runs that are killed, refused by the disk, or started twice: the files end up all patched or all pristine."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from scripts.patching import lock, transaction
from scripts.patching.series import State
from scripts.patching.trouble import Trouble
from tests.patches.small import SMALL_FILES

ROOT = Path(__file__).resolve().parent.parent.parent
COMPILE_FX = "torch/_inductor/compile_fx.py"

# Runs apply or revert and dies, as by SIGKILL, at the given call of one function.
KILLED = """
import os, sys
from pathlib import Path
from scripts.patching import apply, series, target, transaction
command, root, patches, module, name, call = sys.argv[1:]
holder = {"os": os, "transaction": transaction}[module]
real, calls = getattr(holder, name), 0
def dying(*args, **kwargs):
    global calls
    calls += 1
    if calls == int(call):
        os._exit(9)
    return real(*args, **kwargs)
setattr(holder, name, dying)
wanted = series.State.PATCHED if command == "apply" else series.State.PRISTINE
list(apply.brought_to(wanted, target.find(root), Path(patches)))
"""

# Where to die: at each file laid out in the journal, the journal's list, each replacement, and the end.
MOMENTS = [("transaction", "_write", call) for call in (1, 3, 4)]
MOMENTS += [("os", "replace", call) for call in (1, 2, 3, 4)]
MOMENTS += [("transaction", "_remove", 1)]


def killed(small, command: str, module: str, name: str, call: int) -> None:
    arguments = [command, str(small.root), str(small.patches), module, name, str(call)]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 9, done.stderr


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: ":".join(map(str, moment)))
@pytest.mark.parametrize("command", ["apply", "revert"])
@pytest.mark.parametrize("next_command, state", [("apply", State.PATCHED), ("revert", State.PRISTINE)])
def test_next_run_after_a_kill_does_its_whole_work(small, moment, command, next_command, state):
    if command == "revert":
        small.apply()
    killed(small, command, *moment)
    assert (small.root / transaction.JOURNAL).exists()
    lines = getattr(small, next_command)()
    assert "interrupted" in lines[0]
    assert small.states() == {state}
    small.revert()
    assert small.contents() == SMALL_FILES


def test_rollback_that_is_killed_is_finished_by_the_next_run(small):
    killed(small, "apply", "os", "replace", 4)
    killed(small, "apply", "os", "replace", 2)  # the second file that is rolled back
    small.revert()
    assert small.contents() == SMALL_FILES


def test_status_tells_of_an_interrupted_run_and_changes_nothing(small):
    from scripts.patching import apply

    killed(small, "apply", "os", "replace", 3)
    before = small.contents()
    assert "interrupted" in list(apply.status(small.target, small.patches))[-1]
    assert small.contents() == before


def test_file_of_a_new_installation_is_not_rolled_back(small):
    killed(small, "apply", "os", "replace", 4)
    small.write(COMPILE_FX, "# another release\n")
    with pytest.raises(Trouble, match="left untouched"):
        small.apply()
    assert small.contents()[COMPILE_FX] == "# another release\n"
    assert small.states() == {State.PRISTINE, State.UNKNOWN}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_error_in_the_middle_rolls_back_at_once(small, monkeypatch, error, call):
    real, calls = os.replace, []

    def failing(*args):
        calls.append(args)
        if len(calls) == call:
            raise error
        return real(*args)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises((Trouble, KeyboardInterrupt)) as raised:
        small.apply()
    if isinstance(error, OSError):
        assert "nothing was changed" in str(raised.value) and "No space left" in str(raised.value)
    assert small.contents() == SMALL_FILES


def test_second_run_waits_for_the_first(small):
    with lock.alone(small.root / "torch" / ".pygraph_patching.lock"):
        waiting = threading.Thread(target=small.apply)
        waiting.start()
        time.sleep(0.5)
        assert small.states() == {State.PRISTINE}
    waiting.join(timeout=30)
    assert small.states() == {State.PATCHED}


def test_run_that_waits_too_long_says_what_it_waits_for(tmp_path):
    with lock.alone(tmp_path / "lock"):
        with pytest.raises(Trouble, match="another run is at work.*lock"):
            with lock.alone(tmp_path / "lock", patience=0.2):
                pass


def test_lock_of_a_killed_process_is_free(tmp_path):
    holding = f"""
        import time
        from pathlib import Path
        from scripts.patching.lock import alone
        with alone(Path({str(tmp_path / "lock")!r})):
            print("held", flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(holding)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Trouble), lock.alone(tmp_path / "lock", patience=0.2):
            pass
        holder.send_signal(signal.SIGKILL)
    with lock.alone(tmp_path / "lock", patience=5):
        pass
    assert not (tmp_path / "lock").exists()


def test_many_runs_at_once_are_never_inside_together(tmp_path):
    inside, most = 0, 0

    def enter():
        nonlocal inside, most
        for _ in range(20):
            with lock.alone(tmp_path / "lock", patience=60):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
