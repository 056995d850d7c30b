"""The local engine: all clients in one process on one device, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedchoir.core.actions import Action, Exchange, perform
from fedchoir.core.batches import PublicView
from fedchoir.core.eligibility import mean_weights
from fedchoir.core.exchange import Reply
from fedchoir.core.interfaces import ReadState
from fedchoir.core.scores import Detail, Evaluation, TestScore, Validation
from fedchoir.core.training import EagerTrainer, Trainer
from fedchoir.core.validation import enough, evaluate_client
from fedchoir.data.public import PublicSet
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import Scenario
from fedchoir.engines.local.client_pool import ClientPool
from fedchoir.engines.local.cuda_graphs import CudaGraphTrainer
from fedchoir.engines.local.pretrained import PretrainedTrainer
from fedchoir.methods.base import Method
from fedchoir.payload import Payload
from fedchoir.privacy.secure_aggregation.terms import SumTerms
from fedchoir.utils.threads import cores

if TYPE_CHECKING:
    from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient

STATE_BUDGET = 2e9  # bytes

Progress = Callable[[str, str], None]
"""Called with (client, phase) whenever a client starts a phase."""


class LocalEngine:
    """Runs a method's actions on clients in this process."""

    def __init__(
        self,
        method: Method,
        scenario: Scenario,
        public: PublicSet | None,
        *,
        device: torch.device,
        precision: str = "fp32",
        fused: bool = False,
        progress: Progress = lambda client, phase: None,
        trainer: Trainer | None = None,
        budget: float = STATE_BUDGET,
        folder: Path | None = None,
        clients: Sequence[int] | None = None,
        pretrained: str | None = None,
    ) -> None:
        """``budget``: bytes of memory for clients' states; the others are files in ``folder``. ``clients``: the indices
        of the clients in this process, where other processes have the rest. ``pretrained``: as in `fast_trainer`."""
        self.method = method
        self.device = device
        self.seconds = {"public": 0.0, "local": 0.0, "evaluate": 0.0}
        self._progress = progress
        self._evaluations: dict[int, Evaluation] = {}  # of clients that have not changed since
        self._tests = [test.to(device) for test in scenario.tests.values()]
        self._own_tests = [scenario.own_tests[data.name].to(device) for data in scenario.clients if scenario.own_tests]
        self._validation = [data.validation and data.validation.to(device) for data in scenario.clients]
        self._one_for_all = evaluates_once(method, scenario)
        if method.evaluates_on_pool:
            method.pool = tuple(data.train.to(device) for data in scenario.clients)
        seed, augment = method.spec.seed, method.params.public_augment
        view = None if public is None else PublicView(public, seed=seed, kind=augment, device=device)
        self._trainer = trainer or fast_trainer(device, Path(pretrained) if pretrained else None)
        self.clients = ClientPool(
            method, scenario.clients, view, self._trainer, device=device, precision=precision,
            fused=fused, budget=budget, folder=folder, indices=clients,
        )  # fmt: skip
        self._secure_clients: dict[int, SecureAggregationClient] = {}
        self._kernel_notes = self._compile_kernels(precision) if fused else []

    def _compile_kernels(self, precision: str) -> list[str]:
        from fedchoir.engines.local.fused.compile_ahead import compile_ahead  # needs Triton

        spec, dtype = self.method.spec, torch.bfloat16 if precision == "bf16" else torch.float32
        architectures = {spec.clients[k].model: k for k in reversed(self.clients.indices)}
        models = (self.clients[k].model for k in architectures.values())
        self._progress("all clients", "compile kernels")
        return compile_ahead(models, spec.inputs, self.device, dtype, cores())

    @property
    def notes(self) -> list[str]:
        """About models, their kernels and CUDA graphs, for the result."""
        return [*self.clients.notes, *self._kernel_notes, *self._trainer.notes]

    def execute(
        self,
        clients: Sequence[int],
        actions: Sequence[Action],
        round_index: int,
        masking: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Iterator[Reply]:
        """Let each client run all actions; a reply holds the last one's payloads. With ``masking`` only its clients
        run, and their payloads are masked for secure aggregation."""
        for k in clients if masking is None else masking:
            client = self.clients.changing(k)
            self._evaluations.pop(k, None)
            client.begin(round_index)
            payloads: list[Payload] = []
            for action in actions:
                self._progress(client.name, action.function.__name__)
                with self._timed("public" if action.batches else "local"):
                    payloads = perform(client, action)
            reply = Reply(k, payloads, client.report())
            yield reply if masking is None else self._masked(reply, masking[k], actions[-1])

    def received(self, clients: Sequence[int], actions: Sequence[Action], round_index: int) -> dict[int, str]:
        return dict.fromkeys(clients, "")  # one process: all receive the same

    def exchange_keys(self, requests: Mapping[int, Mapping[str, Any]]) -> Iterator[Reply]:
        """Each client's response to a message about keys."""
        for k, request in requests.items():
            yield Reply(k, keys=self._secure_client(k).exchange_keys(request))

    def _masked(self, reply: Reply, request: Mapping[str, Any], action: Action) -> Reply:
        assert isinstance(action, Exchange)
        names = tuple(client.name for client in self.method.spec.clients)
        terms = SumTerms(request["exchange"], names, mean_weights(action.aggregator()) or {})
        try:
            payloads, keys = self._secure_client(reply.client).mask_payloads(reply.payloads, request, terms)
        except ValueError as error:  # values that are not finite cannot be summed
            return replace(reply, payloads=(), error=str(error))
        return replace(reply, payloads=payloads, keys=keys)

    def _secure_client(self, k: int) -> SecureAggregationClient:
        from fedchoir.privacy.secure_aggregation.client import SecureAggregationClient  # needs `cryptography`

        return self._secure_clients.setdefault(k, SecureAggregationClient(k, {}))

    def evaluate(self, weights: dict[str, Tensor] | None, round_index: int, detail: Detail) -> list[Evaluation | None]:
        """The evaluation of every client on all tests, and on its own share of them where there is one; None for those
        that have not joined yet. A global model is evaluated once, unless its scores depend on the client; a client's
        own model only if it has changed."""
        indices, joined = self.clients.indices, self.method.spec.has_joined
        if weights is not None and self._one_for_all:
            row = self.evaluate_global(weights, range(len(self._tests) + len(self._own_tests)), detail)
            shared, own = row[: len(self._tests)], row[len(self._tests) :]
            kept = self.validate_global(weights, round_index)
            return [
                Evaluation((*shared, *own[k : k + 1]), v) if joined(k, round_index) else None
                for k, v in zip(indices, kept, strict=True)
            ]
        with self._timed("evaluate"):
            return [
                self._evaluate(k, weights, round_index, detail) if joined(k, round_index) else None for k in indices
            ]

    def evaluate_global(self, weights: dict[str, Tensor], tests: Sequence[int], detail: Detail) -> list[TestScore]:
        """Scores of a global model on some test sets by number; the clients' own shares come after the others."""
        sets = [*self._tests, *self._own_tests]
        client = self.clients[self.clients.indices[0]]
        self._progress(client.name, "evaluate")
        with self._timed("evaluate"):
            chosen = [sets[number] for number in tests]
            return list(evaluate_client(self.method, client, chosen, detail, 0, weights=weights).tests)

    def validate_global(self, weights: dict[str, Tensor], round_index: int) -> list[Validation | None]:
        """Scores of a global model on each client's validation share; None where there is none."""
        joined = self.method.spec.has_joined
        with self._timed("evaluate"):
            return [
                self._evaluate(k, weights, round_index, "metrics", tests=()).validation
                if self._validation[k] and joined(k, round_index)
                else None
                for k in self.clients.indices
            ]

    def _evaluate(
        self,
        k: int,
        weights: dict[str, Tensor] | None,
        round_index: int,
        detail: Detail,
        tests: Sequence[Samples] | None = None,
    ) -> Evaluation:
        known = self._evaluations.get(k)
        if weights is None and known is not None and enough(known, detail):
            return known
        validation = self._validation[k]
        client = self.clients[k] if validation is None else self.clients.changing(k)
        self._progress(client.name, "evaluate")
        tests = [*self._tests, *self._own_tests[k : k + 1]] if tests is None else tests
        own = None if weights is None else self.method.client_weights(k, weights, round_index)
        found = evaluate_client(self.method, client, tests, detail, round_index, weights=own, validation=validation)
        if weights is None:
            self._evaluations[k] = found
        return found

    def states(self) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        return self.clients.states()

    def saved(self, folder: Path) -> None:
        self.clients.saved(folder)

    def load(self, read: ReadState) -> None:
        self._evaluations.clear()
        self.clients.load(read)

    def close(self) -> None:
        self.clients.close()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[phase] += time.perf_counter() - start


def evaluates_once(method: Method, scenario: Scenario) -> bool:
    """Whether a global model has the same scores at every client: no probe, and the same transform of the tests."""
    transforms = [data.train.transform for data in scenario.clients]
    return not method.evaluates_per_client and all(transform == transforms[0] for transform in transforms)


def fast_trainer(device: torch.device, pretrained: Path | None = None) -> Trainer:
    """Captured steps on a GPU, eager ones on a CPU. ``pretrained``: a folder of models that runs share."""
    trainer: Trainer = CudaGraphTrainer() if device.type == "cuda" else EagerTrainer()
    return trainer if pretrained is None else PretrainedTrainer(trainer, pretrained)
