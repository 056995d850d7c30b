"""fedchoir: federated learning for a choir of different voices.

>>> from fedchoir import Experiment
>>> Experiment(method="fccl+", scenario="digits-lite").seed
0
"""

import os

# Before torch is loaded: OpenMP threads that wait for each other should not spin for long. With the default, a training
# step takes thirty times as long as soon as another process wants one of the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from fedchoir import losses
from fedchoir.core.result import Result
from fedchoir.experiments.config import Experiment
from fedchoir.experiments.run import run
from fedchoir.version import __version__

__all__ = ["Experiment", "Result", "__version__", "losses", "run"]
