"""fedchoir: federated learning for a choir of different voices.

>>> from fedchoir import Experiment
>>> Experiment(method="fccl+", scenario="digits-lite").seed
0
"""

from fedchoir import losses
from fedchoir.experiment import Experiment
from fedchoir.federation.result import Result
from fedchoir.runner import run
from fedchoir.version import __version__

__all__ = ["Experiment", "Result", "__version__", "losses", "run"]
