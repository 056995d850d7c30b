"""FedFoA's exchange of feature correlations, one n×n matrix per round, for any self-supervised method."""

from typing import Any, cast

from torch import Tensor, nn

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.losses.factorization import Solver
from fedchoir.methods.api import Client, Exchange, Field, Method, Round, Script, Settings, Step, gather
from fedchoir.methods.ssl.correlations import Correlations, Scale, choose, distances
from fedchoir.models import Model
from fedchoir.payload import Payload, sends
from fedchoir.utils.errors import UsageError

BANK = "correlation/"


class FedFoAExchangeParams(Settings):
    dim: int = Field(256, ge=2, description="n: width of the calibrated features Z, and of the projections")
    foa: bool = Field(False, description="add FedFoA's exchange of feature correlations to the method")
    foa_weight: float = Field(0.01, ge=0, description="λ of FedFoA eq. 13: weight of the mutual understanding")
    foa_scale: Scale = Field(
        "unit", description="FedFoA: features at unit length, so that Tr(R) measures independence only, or raw (paper)"
    )
    t_warm: int = Field(5, ge=0, description="rounds before the correlations of other clients are used")
    peers: int = Field(0, ge=0, description="random other clients whose correlations a client receives; 0: all")
    solver: Solver = Field(
        "auto", description="FedFoA: QR and SVD (factors) or Cholesky and matrix products; auto is factors on the CPU"
    )


class FedFoAExchange(Method):
    """Clients receive the others' R̄ before the local phase and send their own after it, if ``foa`` is on."""

    Params = FedFoAExchangeParams
    params: FedFoAExchangeParams
    streams = {"share_correlation": "tell"}  # frozen stream name

    @classmethod
    def requires_individual_payloads(cls, params: Settings) -> str:
        assert isinstance(params, FedFoAExchangeParams)
        return "foa = true keeps each client's correlation matrix; it should be false" if params.foa else ""

    def __init__(self, params: Settings, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        for client in spec.clients:
            if client.train:  # 0: a site that has not joined yet
                self.check_batch_size(client.name, client.train)

    def check_batch_size(self, name: str, train: int) -> None:
        """A correlation matrix needs at least as many samples as it has rows."""
        p = self.params
        if p.foa and (rows := min(p.local_batch, train)) < p.dim:
            larger = f", or local_batch to {p.dim} or more" if train >= p.dim else ""
            raise UsageError(
                f"dim = {p.dim} is not possible with foa: {name} has batches of {rows} samples, and a "
                f"correlation matrix needs at least dim; set dim to {rows} or less{larger}"
            )

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        return {"correlations": Correlations(self.params.dim, self.params.foa_scale)} if self.params.foa else {}

    def understanding(self, client: Client, z: Tensor) -> Tensor:
        """λ Σ_j ℓ_A of eq. 13."""
        peers = cast(Tensor | None, client.memory.get("peers"))
        return self.params.foa_weight * self.correlations(client).term(z, peers, self.params.solver)

    def correlations(self, client: Client) -> Correlations:
        return cast(Correlations, client.modules["correlations"])

    def receive_correlations(self, r: Round) -> Script:
        """Before the local phase: send every client the others' R̄ from the memory bank."""
        if not self.params.foa or r.index < self.params.t_warm:
            return
        if chosen := choose(self.bank, r.clients, self.params.peers, self.spec.seed, r.index):
            yield Step(self.store_peers, received={k: Payload(correlations=rs) for k, rs in chosen.items()})

    def share_correlations(self) -> Script:
        """After the local phase: store every client's R̄ in the memory bank."""
        if self.params.foa:
            payloads = yield Exchange(self.share_correlation, aggregator=gather, dims={"N": self.params.dim})
            self.server |= {f"{BANK}{k}": payload["correlation"].cpu() for k, payload in payloads.items()}

    def store_peers(self, client: Client, received: Payload | None) -> None:
        if received is None:
            client.memory.pop("peers", None)
        else:
            client.memory["peers"] = received["correlations"]

    @sends(correlation="N N")
    def share_correlation(self, client: Client) -> Payload:
        return Payload(correlation=self.correlations(client).mean())

    @property
    def bank(self) -> dict[int, Tensor]:
        """R̄ by client, for those that have sent one."""
        return {int(name.removeprefix(BANK)): r for name, r in self.server.items() if name.startswith(BANK)}

    def server_metrics(self) -> dict[str, Any]:
        return {"correlation_distance": distances(self.bank, len(self.spec.clients))} if self.params.foa else {}
