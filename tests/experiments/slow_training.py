"""A plug-in for processes that a test stops: a client says when it trains, and takes a moment."""

import time
from typing import Any

from fedchoir.core.client import Client

train = Client.train


def slow_train(self: Client, *arguments: Any, **options: Any) -> Any:
    print("a client trains", flush=True)
    time.sleep(0.5)
    return train(self, *arguments, **options)


Client.train = slow_train  # type: ignore[method-assign]
