"""SOLO (the papers' BASE): every client trains alone."""

from fedchoir.methods.api import Client, Field, Method, Round, Script, Settings, Step


class SoloParams(Settings):
    epochs: int = Field(
        0,
        ge=0,
        description="total epochs, spread over the rounds with a new optimizer in each; 0: local_epochs in each round, "
        "like every other method. For epochs in one go: pretrain_epochs and local_epochs=0, as in profile paper",
    )


class Solo(Method):
    """Local training without any exchange."""

    name = "solo"
    title = "every client alone (the papers' BASE)"
    Params = SoloParams
    supports_dp = True
    params: SoloParams

    def round(self, r: Round) -> Script:
        yield Step(self.local_update)

    def local_update(self, client: Client) -> None:
        client.train(self.local_loss, epochs=self.epochs_in(client))

    def epochs_in(self, client: Client) -> int:
        """This round's share of the epochs."""
        k, rounds = client.index, client.round
        return self.private_epochs(k, rounds + 1) - self.private_epochs(k, rounds)

    def private_epochs(self, client: int, rounds: int) -> int:
        if self.params.epochs == 0:
            return super().private_epochs(client, rounds)
        return self.params.pretrain_epochs + self.params.epochs * rounds // self.spec.rounds
