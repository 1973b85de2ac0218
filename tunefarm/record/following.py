"""Reads on in a ledger while its driver writes it: what it tells of a study that has just ended."""

from __future__ import annotations

from pathlib import Path

from tunefarm.record.account import StudyAccount
from tunefarm.record.memo import current
from tunefarm.record.reading import Teller
from tunefarm.record.scan import Scan


class Follower:
    """Reads a ledger once, however often it is asked, and forgets what nobody will ask for again.

    Args:
        path: of the ledger.
        conditions: under which its driver records.
    """

    def __init__(self, path: Path, conditions: str) -> None:
        self._scan, self._conditions = Scan(path), conditions
        self._teller = Teller()

    def account(self, study: str) -> StudyAccount | None:
        """What it tells of a study by now; None if nothing.

        Raises:
            LedgerError: it cannot be read.
        """
        # What this driver writes after its first word is under its own conditions.
        events = self._scan if self._scan.num_events else current(self._scan, self._conditions)
        for event in events:
            self._teller.take(event["event"], event["data"])
        known = self._teller.studies.get(study)
        return None if known is None else known.finished()

    def forget(self, study: str) -> None:
        """Lets go of a study."""
        self._teller.studies.pop(study, None)
