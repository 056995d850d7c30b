"""Protocols of a simulation that concern its clients: which model each has, and when each joins."""

from fedchoir.core.settings import Settings
from fedchoir.data.scenario import Scenario
from fedchoir.experiments.config import Plan
from fedchoir.utils.errors import UsageError


def places(scenario: Scenario) -> list[int]:
    """Each client's position among all clients of the scenario, those of a held-out domain included."""
    return [k if client.place is None else client.place for k, client in enumerate(scenario.clients)]


def models_of_clients(plan: Plan, scenario: Scenario) -> list[str]:
    """Each client's model. With ``rotate`` they move on by one client, and by one more with every seed: over as many
    seeds as clients, every client has every model equally often."""
    models = [plan.models[place % len(plan.models)] for place in places(scenario)]
    if not plan.params.rotate:
        return models
    shift = (plan.experiment.seed + 1) % len(models)
    return models[-shift:] + models[:-shift]


def with_epochs_of_places(params: Settings, scenario: Scenario) -> Settings:
    """The options with the local epochs that each client would have without a held-out domain."""
    if isinstance(params.local_epochs, int) or not any(client.place is not None for client in scenario.clients):
        return params
    return params.model_copy(update={"local_epochs": tuple(map(params.epochs_of, places(scenario)))})


def first_rounds(params: Settings, scenario: Scenario) -> tuple[int, ...]:
    """Each client's first round, from 0; empty if all take part from the start."""
    late, names = params.late_rounds, [client.name for client in scenario.clients]
    if not late:
        return ()
    if unknown := [name for name in late if name not in names]:
        raise UsageError(f"join_late: there is no client {unknown[0]!r}; the clients are {', '.join(names)}")
    if len(late) == len(names):
        raise UsageError("join_late is not possible for all clients: one or more should take part in the first round")
    return tuple(late.get(name, 1) - 1 for name in names)
