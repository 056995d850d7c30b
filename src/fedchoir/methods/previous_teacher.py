"""Public methods whose local phase distils from the client's own model of the previous round."""

from fedchoir.methods.api import Client, PublicMethod, Round, Script, Step


class PreviousTeacher(PublicMethod):
    """Stores θ^{e−1}, the client's model at the end of the previous round, as ``client.memory["teacher"]``."""

    @property
    def uses_teacher(self) -> bool:
        """Whether the options in force need the teacher."""
        return True

    def round(self, r: Round) -> Script:
        if self.uses_teacher:
            yield Step(self.store_teacher)
        yield from super().round(r)

    def store_teacher(self, client: Client) -> None:
        client.memory["teacher"] = client.snapshot()

    def store_pretrained(self, client: Client) -> None:
        """Store the model that was trained on private data alone (FCCL's intra-domain teacher)."""
        client.memory["pretrained"] = client.snapshot()
