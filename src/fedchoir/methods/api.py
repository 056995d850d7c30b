"""The classes that most methods of this package need, in one import. Plug-ins import them from `fedchoir`."""

from pydantic import Field

from fedchoir.core.actions import Exchange, PublicBatch, Received, Round, Script, Step
from fedchoir.core.aggregation import Aggregator, ByName, gather, mean
from fedchoir.core.client import Client
from fedchoir.core.settings import Settings
from fedchoir.core.teachers import Teacher
from fedchoir.core.training import Batch
from fedchoir.methods.base import Method, PublicMethod

__all__ = [
    "Aggregator", "Batch", "ByName", "Client", "Exchange", "Field", "Method", "PublicBatch", "PublicMethod",
    "Received", "Round", "Script", "Settings", "Step", "Teacher", "gather", "mean",
]  # fmt: skip
