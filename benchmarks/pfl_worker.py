"""pfl-research's part of `pfl.py`: runs in the environment of the ``pfl`` package and does not import fedchoir.

It reads a file of images and labels, then runs one central iteration of federated averaging for each line on its
standard input and prints the seconds that it took.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class CNN(nn.Sequential):
    """The CNN of Reddi et al. that pfl-research trains on CIFAR-10."""

    steps = 0

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
        )  # fmt: skip

    def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
        self.eval() if eval else self.train()
        CNN.steps += not eval
        return nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, Weighted]:
        self.eval() if eval else self.train()
        hits = (self(inputs).argmax(1) == targets).sum().item()
        return {"accuracy": Weighted(hits, len(inputs))}


class OnCommand(TrainingProcessCallback):
    """Waits for a line before every central iteration and prints its time."""

    def __init__(self) -> None:
        sys.stdin.readline()
        self.begin()

    def begin(self) -> None:
        self.start, self.work, self.before = time.perf_counter(), time.process_time(), CNN.steps

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
        taken = {"wall": time.perf_counter() - self.start, "cpu": time.process_time() - self.work}
        sys.stdout.write(json.dumps({**taken, "steps": CNN.steps - self.before}) + "\n")
        sys.stdout.flush()
        line = sys.stdin.readline()
        self.begin()
        return not line, Metrics()


def main() -> None:
    path, clients, each, cohort, channels_last = sys.argv[1], *map(int, sys.argv[2:6])
    torch.set_num_threads(1)
    with np.load(path) as file:
        images, labels = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    users = {str(k): (images[k * each : k * each + each], labels[k * each : k * each + each]) for k in range(clients)}
    data = FederatedDataset(
        lambda user: Dataset(raw_data=list(users[user]), user_id=user), get_user_sampler("random", list(users))
    )
    network = CNN()
    if channels_last:
        network = network.to(memory_format=torch.channels_last)
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=100_000,
            evaluation_frequency=100_000,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(local_learning_rate=0.1, local_num_epochs=1, local_batch_size=10),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[OnCommand()],
    )


if __name__ == "__main__":
    main()
