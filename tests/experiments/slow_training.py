"""A plug-in for processes that a test stops: a client says that it trains, and takes a moment."""

import time

from fedchoir.methods.base import PublicMethod

train = PublicMethod.local_update


def local_update(self, client):  # type: ignore[no-untyped-def]
    print("a client trains", flush=True)
    time.sleep(0.5)
    return train(self, client)


PublicMethod.local_update = local_update
