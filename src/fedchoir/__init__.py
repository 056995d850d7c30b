"""fedchoir: federated learning between clients with different model architectures.

One import is enough for a method, model or data plug-in:

>>> from fedchoir import Client, Payload, PublicMethod, sends
>>> from fedchoir import Experiment
>>> Experiment(method="fccl+", scenario="digits-lite").seed
0
"""

import os

# Before torch is loaded: waiting OpenMP threads should not spin for long. With the default, a training step takes
# thirty times as long as soon as another process uses one of the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from pydantic import Field

from fedchoir import losses
from fedchoir.core.actions import Exchange, PublicBatch, Round, Script, Step
from fedchoir.core.aggregation import Aggregator, by_name, gather, mean, weighted_mean
from fedchoir.core.client import Client
from fedchoir.core.result import Result
from fedchoir.core.settings import Settings
from fedchoir.core.teachers import Teacher
from fedchoir.core.training import Batch
from fedchoir.experiments.config import Experiment
from fedchoir.experiments.run import run
from fedchoir.experiments.trained import load_model
from fedchoir.methods.base import Method, PublicMethod
from fedchoir.payload import MODEL, MODULE, Payload, sends, state_payload
from fedchoir.utils.errors import UsageError
from fedchoir.version import __version__

__all__ = [
    "MODEL",
    "MODULE",
    "Aggregator",
    "Batch",
    "Client",
    "Exchange",
    "Experiment",
    "Field",
    "Method",
    "Payload",
    "PublicBatch",
    "PublicMethod",
    "Result",
    "Round",
    "Script",
    "Settings",
    "Step",
    "Teacher",
    "UsageError",
    "__version__",
    "by_name",
    "gather",
    "load_model",
    "losses",
    "mean",
    "run",
    "sends",
    "state_payload",
    "weighted_mean",
]
