"""A command that is asked to end is gone in time: real processes, held up in the ways that sweeps were seen to be."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from farm import children, running, wait_until, write_experiment, write_landscape

HELD_UP = {
    "deaf": """
while True:
    try:
        print("ready", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        pass
""",
    "another's handler": """
signal.signal(number, lambda *_: None)
print("ready", flush=True)
while True:
    time.sleep(600)
""",
    "native code": """
import ctypes
mutex = ctypes.create_string_buffer(64)
ctypes.CDLL(None).pthread_mutex_lock(mutex)
while True:
    try:
        print("ready", flush=True)
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
    except KeyboardInterrupt:  # asked before it was in there
        pass
""",
    "a farewell": """
atexit.register(time.sleep, 600)
print("ready", flush=True)
time.sleep(600)
""",
}
START = "import atexit, signal, sys, time; from tunefarm.cli.deadline import end_in_time; end_in_time(1.0); "


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("how", HELD_UP)
def test_whatever_holds_it_up_it_ends(how: str, number: signal.Signals) -> None:
    source = f"{START}number = {int(number)}\n{HELD_UP[how]}"
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(60) == 130


def test_the_interpreter_is_not_torn_down_after_what_was_registered_and_said() -> None:
    """Beside Ray and torch that took up to 14 s on a loaded machine."""
    lasting = "class Lasting:\n def __del__(self): import time; time.sleep(600)\nsys.lasting = Lasting()\n"
    source = f"{START.replace('1.0', '600.0')}\n{lasting}atexit.register(print, 'farewell')\nprint('ready')\n"
    source += "try:\n import os; os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)\nexcept KeyboardInterrupt:\n"
    source += " print('interrupted'); time.sleep(0.5); sys.exit(130)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "ready\ninterrupted\nfarewell\n", "")


def test_who_is_not_asked_ends_as_ever() -> None:
    done = subprocess.run([sys.executable, "-c", f"{START}sys.exit(3)"], timeout=60, check=False)
    assert done.returncode == 3


def test_while_ray_starts_the_word_is_the_commands_own(tmp_path: Path, store: Path) -> None:
    """Ray answers SIGTERM with the exit code 15 from the moment it starts."""
    write_landscape(write_experiment(tmp_path))
    words = ("sweep", "experiment.yaml", "--meter", "replay", "--tracking", "none")
    with running(*words, folder=tmp_path, store=store) as process:
        assert wait_until(lambda: bool(named("gcs_server", process.pid)))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err


def named(name: str, parent: int) -> list[int]:
    """Children of a process whose command line holds a name."""
    found = []
    for pid in children(parent):
        try:
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found
