"""FedFoA's exchange of feature correlations, one n×n matrix per round, for any self-supervised method."""

from typing import Annotated, Any, Literal, cast

from torch import Tensor, nn

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.losses.factorization import Solver
from fedchoir.methods.api import Client, Exchange, Field, Method, Round, Script, Settings, Step, gather
from fedchoir.methods.ssl.correlations import Correlations, Scale, choose, distances, random_like, square, upper
from fedchoir.models import Model
from fedchoir.payload import Payload, sends
from fedchoir.utils.errors import UsageError
from fedchoir.utils.rng import generator

BANK = "correlation/"
DIM, BATCH = 256, 500  # n and m of the paper


class FedFoAExchangeParams(Settings):
    dim: Annotated[int, Field(ge=2)] | Literal["auto"] = Field(
        "auto",
        description="n: width of the calibrated features Z, and of the projections; auto: 256 or, with foa, as much as "
        "the clients' batches allow",
    )
    foa: bool = Field(False, description="add FedFoA's exchange of feature correlations to the method")
    foa_weight: float = Field(
        0.01, ge=0, description="λ of FedFoA eq. 13: weight of the mutual understanding; 0: R is recorded, not used"
    )
    foa_scale: Scale = Field(
        "unit",
        description="FedFoA: features at unit length, so that Tr(R) measures independence only; raw (paper); or "
        "centred, without their mean over the batch and at unit length",
    )
    foa_target: Literal["peers", "own", "random"] = Field(
        "peers", description="R that a client aligns with: the others', or as controls its own last one, or random ones"
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
        assert isinstance(params, FedFoAExchangeParams)
        rows = [min(params.local_batch, client.train) for client in spec.clients if client.train]
        self.dim = fitting_dim(min(rows, default=params.local_batch)) if params.foa else DIM
        if params.dim != "auto":
            self.dim = params.dim
        super().__init__(params, spec)
        if self.dim < DIM and params.dim == "auto":
            self.notes.append(f"dim = {self.dim}, not {DIM}: the smallest batches of a client have {min(rows)} samples")
        for client in spec.clients:
            if client.train:  # 0: a site that has not joined yet
                self.check_batch_size(client.name, client.train)

    def check_batch_size(self, name: str, train: int) -> None:
        """A correlation matrix needs at least as many samples as it has rows."""
        p, dim = self.params, self.dim
        if p.foa and (rows := min(p.local_batch, train)) < dim:
            larger = f", or local_batch to {dim} or more" if train >= dim else ""
            raise UsageError(
                f"dim = {dim} is not possible with foa: {name} has batches of {rows} samples, and a "
                f"correlation matrix needs at least dim; set dim to {rows} or less{larger}"
            )

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        return {"correlations": Correlations(self.dim, self.params.foa_scale)} if self.params.foa else {}

    def understanding(self, client: Client, z: Tensor) -> Tensor:
        """λ Σ_j ℓ_A of eq. 13."""
        peers = cast(Tensor | None, client.memory.get("peers"))
        return self.params.foa_weight * self.correlations(client).term(z, peers, self.params.solver)

    def correlations(self, client: Client) -> Correlations:
        return cast(Correlations, client.modules["correlations"])

    def receive_correlations(self, r: Round) -> Script:
        """Before the local phase: send every client the others' R̄ from the memory bank."""
        if not self.params.foa or not self.params.foa_weight or r.index < self.params.t_warm:
            return
        if chosen := self.chosen(r):
            yield Step(self.store_peers, received={k: Payload(correlations=upper(rs)) for k, rs in chosen.items()})

    def chosen(self, r: Round) -> dict[int, Tensor]:
        """The R̄ that each client aligns its features with, J×n×n."""
        if self.params.foa_target == "own":
            return {k: rs.unsqueeze(0) for k, rs in self.bank.items() if k in r.clients}
        chosen = choose(self.bank, r.clients, self.params.peers, self.spec.seed, r.index)
        if self.params.foa_target == "peers":
            return chosen
        rows = self.params.local_batch
        draws = {k: generator(self.spec.seed, "random R", r.index, k) for k in chosen}
        return {k: random_like(rs, rows, draws[k]) for k, rs in chosen.items()}

    def share_correlations(self) -> Script:
        """After the local phase: store every client's R̄ in the memory bank."""
        if self.params.foa:
            entries = {"T": self.dim * (self.dim + 1) // 2}
            payloads = yield Exchange(self.share_correlation, aggregator=gather, dims=entries)
            self.server |= {f"{BANK}{k}": payload["correlation"].cpu() for k, payload in payloads.items()}

    def store_peers(self, client: Client, received: Payload | None) -> None:
        if received is None:
            client.memory.pop("peers", None)
        else:
            client.memory["peers"] = square(received["correlations"], self.dim)

    @sends(correlation="T")
    def share_correlation(self, client: Client) -> Payload:
        """R̄, of which the upper triangle is sent: the rest is zero."""
        return Payload(correlation=upper(self.correlations(client).mean()))

    @property
    def bank(self) -> dict[int, Tensor]:
        """R̄ by client, for those that have sent one."""
        found = {name.removeprefix(BANK): r for name, r in self.server.items() if name.startswith(BANK)}
        return {int(k): square(r, self.dim) for k, r in found.items()}

    def server_metrics(self) -> dict[str, Any]:
        return {"correlation_distance": distances(self.bank, len(self.spec.clients))} if self.params.foa else {}


def fitting_dim(rows: int) -> int:
    """The width for batches of so many samples: the largest power of two with at least the paper's m / n.

    >>> [fitting_dim(rows) for rows in (1000, 500, 200, 16, 2)]
    [256, 256, 64, 8, 2]
    """
    return max(2, min(DIM, 1 << int(rows * DIM / BATCH).bit_length() - 1)) if rows * DIM >= 2 * BATCH else 2
