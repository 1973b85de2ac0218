"""A command that is asked to end, by SIGTERM or Ctrl-C, is gone within ten seconds, whatever holds it up."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType

INTERRUPTED = 130
GRACE_S = 7.0
"""From the signal to the end; a loaded machine takes up to three seconds more to see it through."""

_asked = threading.Event()


def end_in_time(grace_s: float = GRACE_S) -> None:
    """From now on SIGTERM interrupts as a pressed key does, and the process does not outlive either for long.

    Where the time is up it ends as by `kill -9`, which costs no more than what is in flight: what was measured is in
    the ledger, and what this process has started ends with it. To be called once, by the main thread.

    Args:
        grace_s: seconds from the signal to the end.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    # Told of a signal before any handler: these wait for the main thread to come back from native code, and Ray puts
    # its own in their place while it starts.
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(told, grace_s), name="tunefarm-deadline", daemon=True).start()
    atexit.register(_leave)  # the first to be registered is the last to be called


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _watch(told: int, grace_s: float) -> None:
    while os.read(told, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
        pass
    _asked.set()
    time.sleep(grace_s)
    os._exit(INTERRUPTED)


def _leave() -> None:
    """Spares who was asked to end the tearing down of the interpreter: beside Ray and torch it takes many seconds."""
    if _asked.is_set():
        with contextlib.suppress(OSError, ValueError):  # whoever read it may be gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(INTERRUPTED)
