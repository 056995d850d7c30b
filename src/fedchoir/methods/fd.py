"""FD. Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data, 2018."""

from typing import Literal

import torch
from torch import Tensor

from fedchoir.losses import class_distillation, class_prototypes
from fedchoir.methods.api import Batch, Client, Exchange, Field, Method, Round, Script, Settings, Step, mean
from fedchoir.payload import Payload, sends


class FDParams(Settings):
    gamma: float = Field(1.0, ge=0, description="γ: weight of the distillation; the paper does not give it")
    outputs: Literal["probabilities", "logits"] = Field(
        "probabilities",
        description="what is averaged for each class: probabilities, with cross-entropy to their mean as in the paper, "
        "or logits, with the squared difference",
    )
    exclude_own: bool = Field(True, description="leave a client's own outputs out of its targets, as in the paper")


class FD(Method):
    """Federated distillation: clients exchange their mean output for each class, C×C numbers.

    F_i,k is the mean of client i's normalised outputs σ(z) over its samples of class k. Its target for class k is the
    mean over the other clients that have the class, and its local loss adds a cross-entropy to the target of the
    sample's class:

        F̂_i,k = (Σ_j F_j,k − F_i,k) / (M_k − 1);   CE(z, y) − γ Σ_c F̂_i,y,c log σ(z)_c;   in the first round CE alone

    The means are taken after the local phase in eval mode; the paper's are over the batches of the local phase. A class
    that no other client has is without distillation. A client finds its targets from the mean over all clients, so
    that the server needs no single payload. The paper's augmentation of private data by a generative model (FAug) is
    another method.
    """

    name = "fd"
    title = "distillation from the clients' mean outputs of each class"
    paper = "Jeong et al., 2018"
    Params = FDParams
    params: FDParams

    def round(self, r: Round) -> Script:
        if self.server:
            yield Step(self.store_targets, received=Payload(self.server))
        yield Step(self.local_update)
        self.server = dict((yield Exchange(self.share_outputs, aggregator=mean, dims=self.dims)))

    @property
    def dims(self) -> dict[str, int]:
        return {"K": len(self.spec.clients)}

    @sends(outputs="C C", owned="C", sender="K")
    def share_outputs(self, client: Client) -> Payload:
        """Mean outputs (a row for each class, zeros for a missing one), which classes the client has, and who it is.

        The mean of the last tells how many clients were in the mean, and whether a client itself was.
        """
        z, labels = client.predict_private(), client.private.labels
        f = z.softmax(dim=1) if self.params.outputs == "probabilities" else z
        outputs, counts = class_prototypes(f, labels, client.model.num_classes)
        owned = (counts > 0).float()
        client.memory["own_outputs"], client.memory["own_classes"] = outputs, owned
        sender = torch.arange(len(self.spec.clients), device=client.device) == client.index
        return Payload(outputs=outputs, owned=owned, sender=sender.float())

    def store_targets(self, client: Client, received: Payload) -> None:
        """The targets F̂ (C×C) and which classes have one (C)."""
        sender = received["sender"]
        count = 1 / sender.max().clamp_min(1 / len(sender))  # clients in the mean
        total, owners = count * received["outputs"], count * received["owned"]
        if self.params.exclude_own and "own_outputs" in client.memory:
            included = sender[client.index] > 0
            total = total - included * client.stored_tensor("own_outputs")
            owners = owners - included * client.stored_tensor("own_classes")
        owners = owners.round()
        client.memory["targets"] = total / owners.clamp_min(1).unsqueeze(1)
        client.memory["known"] = owners > 0

    def local_update(self, client: Client) -> None:
        client.train(self.local_loss if "targets" in client.memory else self.supervised_loss)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        z = client.logits(batch.inputs)
        targets, known = client.stored_tensor("targets"), client.stored_tensor("known")
        distillation = class_distillation(z, batch.labels, targets, known, self.params.outputs)
        return client.cross_entropy(z, batch.labels) + self.params.gamma * distillation
