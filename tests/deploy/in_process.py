"""A federation of sites in one process: the real engine and client workers, with messages as bytes between them.

Each site has its own copy of the method, sees only messages, and is a file between two of them. The real SuperLink and
SuperNodes are in tests/deploy_e2e.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.helpers import Stop

from fedchoir import Experiment, Result
from fedchoir.core.federation_spec import ClientInfo
from fedchoir.core.settings import Settings
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import Scenario
from fedchoir.deploy.client_worker import ClientWorker
from fedchoir.deploy.engine import FlowerEngine
from fedchoir.deploy.policy import Policy
from fedchoir.deploy.site_data import LocalSite, SiteData
from fedchoir.engines.messages import Envelope, MessageError
from fedchoir.experiments.config import make_plan
from fedchoir.experiments.prepare import prepare
from fedchoir.experiments.run import check_folder, run_on_engine
from fedchoir.privacy.secure_aggregation.terms import SecureAggregationError

RUN = "0123456789abcdef"
TRUSTING = Policy(trust_server=True, metrics=True)
"""A site that does and reports everything, so that its numbers can be compared with those of a simulation."""


class ScenarioSite(LocalSite):
    """A site whose data is that of one client of a scenario."""

    def __init__(self, scenario: Scenario, public: PublicSet | None, index: int, model: str) -> None:
        super().__init__(scenario.clients[index].name, model, Path(), Path(), device="cpu")
        client = scenario.clients[index]
        object.__setattr__(self, "_data", SiteData(client.train, scenario.tests, public, client.validation))

    def prepare(self, settings: Settings, classes: tuple[str, ...], public: Mapping[str, Any] | None) -> SiteData:
        data: SiteData = self._data  # type: ignore[attr-defined]
        return data


class InProcessTransport:
    """Carries envelopes to workers in this process. ``fail`` may return a reason why a message gets no reply."""

    def __init__(self, workers: list[ClientWorker]) -> None:
        self.workers = workers
        self.sent: list[dict[str, Any]] = []  # headers
        self.fail: Callable[[int, dict[str, Any]], str] = lambda client, header: ""

    def update_clients(self, clients: tuple[ClientInfo, ...]) -> tuple[ClientInfo, ...]:
        return clients

    def deliver(self, envelopes: Mapping[int, Envelope], within: float = 0.0) -> Iterator[tuple[int, Envelope | str]]:
        for k, envelope in reversed(envelopes.items()):
            text, blobs = envelope.text(), [bytes(blob) for blob in envelope.blobs]
            header = json.loads(text)
            self.sent.append(header)
            if reason := self.fail(k, header):
                yield k, reason
                continue
            try:
                reply = self.workers[k].handle(text, blobs)
            except (MessageError, SecureAggregationError) as error:
                yield k, str(error)
                continue
            yield k, Envelope.read(reply.text(), reply.blobs)


def run_on_sites(
    experiment: Experiment,
    work: Path,
    *,
    resume: bool = False,
    policy: Policy = TRUSTING,
    run: str | None = None,
    change: Callable[[InProcessTransport], None] = lambda transport: None,
) -> tuple[Result, InProcessTransport]:
    """Run an experiment on `FlowerEngine`; ``change`` may alter the transport before the first round."""
    plan = make_plan(experiment)
    check_folder(plan, resume)
    method, scenario, public = prepare(plan)
    transport = InProcessTransport(
        [
            ClientWorker(ScenarioSite(scenario, public, k, client.model), work / client.name, policy)
            for k, client in enumerate(method.spec.clients)
        ]
    )
    change(transport)
    options = {"digest": public.digest} if public else {"name": method.public_set} if method.public_set else None
    engine = FlowerEngine(method, transport, run=run or RUN, public=options, journal=plan.out / "replies.jsonl")
    result = run_on_engine(
        plan, method, engine, tuple(scenario.tests), notes=[], device="cpu", resume=resume, observers=[]
    )
    return result, transport


def stop_before(
    message: int, otherwise: Callable[[int, dict[str, Any]], str] = lambda client, header: ""
) -> Callable[[InProcessTransport], None]:
    """Make the server stop, as if it was killed, before it sends message number ``message``."""

    def change(transport: InProcessTransport) -> None:
        def fail(client: int, header: dict[str, Any]) -> str:
            if len(transport.sent) == message:
                raise Stop
            return otherwise(client, header)

        transport.fail = fail

    return change
