"""HeteroFL. Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients, ICLR 2021."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.sliced_model import SlicedModel


class HeteroFLParams(Settings):
    masked: bool = Field(True, description="set the logits of classes that a client lacks to 0 in its loss")
    static_batchnorm: bool = Field(
        True, description="measure BatchNorm's statistics after training; false: running averages during training"
    )


class HeteroFL(SlicedModel):
    """FedAvg of networks of different widths: a narrow client has the first channels of every layer of the widest.

    With the global weights W of a layer, client k has W_k = W[:d_k, :c_k]. With the clients S(i) that have number i:

        W[i] ← Σ_{k ∈ S(i)} n_k W_k[i] / Σ_{k ∈ S(i)} n_k

    Models must differ in width alone: ``--models resnet10@16,resnet10@8``. Others are refused. Clients evaluate their
    own slices of W.

    *BatchNorm* normalises by the batch in training. For evaluation the paper measures one set of statistics with the
    whole global network at every client (static BatchNorm), which narrow clients cannot run. Here each client measures
    its own network after training, over its private samples, and the server averages over the clients of one width.
    *Scaler:* the paper multiplies a layer's outputs by a factor for narrow networks in training. BatchNorm after the
    layer removes any factor, so it is left out. *Masked loss:* logits of classes that a client lacks are 0 in its loss.
    The released code also leaves it out of the mean of these classes' rows of the head; that would tell the server the
    client's classes.
    """

    name = "heterofl"
    title = "narrow clients train the first channels of one network, averaged by coverage"
    paper = "Diao et al., ICLR 2021"
    Params = HeteroFLParams
    params: HeteroFLParams

    def local_update(self, client: Client) -> None:
        client.memory["present"] = (client.class_counts() > 0).float()
        super().local_update(client)
        if self.params.static_batchnorm:
            measure_statistics(client)

    def local_loss(self, client: Client, batch: Batch) -> Tensor:
        z = client.logits(batch.inputs)
        return client.cross_entropy(z * client.stored_tensor("present") if self.params.masked else z, batch.labels)


@torch.no_grad()
def measure_statistics(client: Client) -> None:
    """Set BatchNorm's statistics to their mean over batches of all private samples, without augmentation."""
    client.model.train()
    norms = [m for m in client.model.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    momentum = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
    for number, (inputs, labels) in enumerate(client.private_chunks() if norms else ()):
        for m in norms:
            m.momentum = 1 / (number + 1)  # a cumulative mean
        if len(labels) > 1:  # a single sample, which can only be the last, has no variance
            client.features(inputs)
    for m, before in zip(norms, momentum, strict=True):
        m.momentum = before
