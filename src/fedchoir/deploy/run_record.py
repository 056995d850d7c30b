"""Which runs a site has taken part in: ``state/runs.jsonl``, over all runs, append-only and chained by hashes.

Training without noise is repeatable. So the difference of a secure sum of one run and the same sum of another run, in
which a site was left out, is that site's payload. A site therefore limits the runs of one agreed file (``max_runs``).
"""

import time
from collections.abc import Iterator
from pathlib import Path

from fedchoir.engines.headers import MessageError
from fedchoir.utils.hash_chain import BrokenChainError, HashChain


class RunRecord:
    """The runs of one agreed file. ``limit`` is the largest number of them; None: no limit.

    Args:
        federation: sha256 of the agreed file; empty for runs without one.
    """

    def __init__(self, path: Path, federation: str, limit: int | None) -> None:
        self._chain, self._federation, self._limit = HashChain(path), federation, limit

    def check(self, run: str) -> None:
        """Raise `MessageError` if this is one run too many. A run that the site has taken part in may go on."""
        runs = set(self._runs())
        if self._limit is not None and run not in runs and len(runs) >= self._limit:
            of = "this agreed file" if self._federation else "no agreed file"
            raise MessageError(
                f"refused: another run. This site has taken part in {len(runs)} of {of}, and its policy has "
                f"max_runs = {self._limit}"
            )

    def add(self, run: str) -> None:
        """Record that the site takes part in a run, before anything of it leaves."""
        self.check(run)
        if run not in set(self._runs()):
            self._chain.append(time=time.time(), federation=self._federation, run=run)

    def _runs(self) -> Iterator[str]:
        try:
            for number, line in enumerate(self._chain, 1):
                if not isinstance(line.get("run"), str) or not isinstance(line.get("federation"), str):
                    raise BrokenChainError(number)
                if line["federation"] == self._federation:
                    yield line["run"]
        except BrokenChainError as error:  # the server gets this text: it names no file
            raise MessageError(
                f"refused: line {error.line} of this site's record of runs (max_runs) was changed or cut; its operator "
                "restores it from a backup"
            ) from None
