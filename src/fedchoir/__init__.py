"""fedchoir: federated learning between clients with different model architectures.

One import is enough for a method, model or data plug-in:

>>> from fedchoir import Client, Payload, PublicMethod, sends
>>> from fedchoir import Experiment
>>> Experiment(method="fccl+", scenario="digits-lite").seed
0

The names are those of ``__init__.pyi``. Each is imported when it is first used: torch takes a second.
"""

import os

import lazy_loader

# Before torch is loaded: waiting OpenMP threads should not spin for long. With the default, a training step takes
# thirty times as long as soon as another process uses one of the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
