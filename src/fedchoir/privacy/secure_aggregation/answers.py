"""A client's record of the sums that it took part in: one exchange has one sum, however often it is asked for.

Two sums of one exchange over different clients would reveal the difference, so the payloads of single clients. A server
that was interrupted may repeat an exchange, but only over the same clients. The record outlives the messages, and going
back to an earlier state of the client does not change it.
"""

import json
from collections.abc import Iterable, MutableMapping
from typing import Any

from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError

Exchange = tuple[int, int]
"""Its round, and its number among the exchanges of the round."""


class Answers:
    def __init__(self, store: MutableMapping[str, str]) -> None:
        self._store = store

    def fix_sites(self, sites: Iterable[str]) -> None:
        """The sites of a run are those of its first sum."""
        before, now = self._store.get("sites"), json.dumps(list(sites))
        if before is None:
            self._store["sites"] = now
        elif before != now:
            raise SecureAggregationError(f"refused: the sites of this run are {before}, and are now given as {now}")

    def check(self, exchange: Exchange, clients: Iterable[int], context: bytes) -> None:
        """Raise `SecureAggregationError` if the exchange was summed over other clients before."""
        before = self._before(exchange)
        if before is not None and before["clients"] != sorted(clients) and before["context"] != context.hex():
            raise SecureAggregationError(
                f"refused: exchange {exchange[1] + 1} of round {exchange[0] + 1} was summed over the clients "
                f"{before['clients']} before, and is now asked for over {sorted(clients)}"
            )

    def record(self, exchange: Exchange, clients: Iterable[int], context: bytes) -> None:
        """Record over whom this exchange is summed; refuse another sum than before.

        The list may change within one sum (one ``context``): some clients dropped out.
        """
        chosen = sorted(clients)
        self.check(exchange, chosen, context)
        before = self._before(exchange)
        if before is None or before["context"] == context.hex():
            self._store[_name(exchange)] = json.dumps({"clients": chosen, "context": context.hex()})

    def _before(self, exchange: Exchange) -> dict[str, Any] | None:
        text = self._store.get(_name(exchange))
        return None if text is None else json.loads(text)


def _name(exchange: Exchange) -> str:
    return f"answered-{exchange[0]}-{exchange[1]}"
