"""The `tunefarm` command, also `python -m tunefarm.cli`: turns exceptions into one line and an exit code."""

from __future__ import annotations

import codecs
import io
import logging
import shutil
import sys

from tunefarm.cli.deadline import INTERRUPTED, end_in_time
from tunefarm.cli.packages import missing
from tunefarm.cli.surroundings import settle
from tunefarm.errors import TunefarmError

_LIKE = {
    "\u2026": "~",
    "\u2014": "-",
    "\u2013": "-",
    "\u2018": "'",
    "\u2019": "'",
    "\u201c": '"',
    "\u201d": '"',
    "\u00b7": ".",
}
"""What stands for punctuation that an encoding lacks; anything else becomes a question mark."""

ROOMY = 72
"""Columns from which boxes leave room for the words of help and of errors."""


def main() -> None:
    """Runs the command line."""
    # A scheduler that wants its machine back is as good as a pressed key: what was measured is kept, and MLflow told.
    end_in_time()
    settle()
    _speak_plainly()
    try:
        from tunefarm.cli.app import app
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as e:
        print(f"error: {missing(e) or e}", file=sys.stderr)
        sys.exit(2)
    if shutil.get_terminal_size().columns < ROOMY:
        app.rich_markup_mode = None
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except TunefarmError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)
    except ModuleNotFoundError as e:
        told = missing(e)
        if told is None:
            raise
        print(f"error: {told}", file=sys.stderr)
        sys.exit(told.exit_code)
    except UnicodeEncodeError as e:  # surrogates: bytes of a path, read by a locale that lacks them
        if not any("\ud800" <= c <= "\udfff" for c in str(e.object)):
            raise
        name = e.object.partition("\0")[0]
        print(f"error: {name!a}: this locale cannot read such a name (set PYTHONUTF8=1)", file=sys.stderr)
        sys.exit(2)
    except OSError as e:  # a full disk, a folder that has gone
        print(f"error: {e}", file=sys.stderr)
        sys.exit(3)


def _speak_plainly() -> None:
    """Lets every text be printed where the terminal's encoding lacks a character: its likeness, of the same width."""
    codecs.register_error("tunefarm.plain", _likeness)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="tunefarm.plain")


def _likeness(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_LIKE.get(c, "?") for c in error.object[error.start : error.end]), error.end


if __name__ == "__main__":
    main()
