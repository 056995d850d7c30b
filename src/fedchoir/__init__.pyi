from . import losses
from .core.actions import Exchange, PublicBatch, Round, Script, Step
from .core.aggregation import Aggregator, by_name, gather, mean, weighted_mean
from .core.client import Client
from .core.result import Result
from .core.settings import Settings
from .core.teachers import Teacher
from .core.training import Batch
from .experiments.config import Experiment
from .experiments.run import run
from .experiments.trained import load_model, load_predictor
from .methods.api import Field
from .methods.base import Method, PublicMethod
from .payload import MODEL, MODULE, Payload, sends, state_payload
from .utils.errors import UsageError
from .version import __version__

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
    "load_predictor",
    "losses",
    "mean",
    "run",
    "sends",
    "state_payload",
    "weighted_mean",
]
