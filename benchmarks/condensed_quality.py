"""How much of what the others' private samples would teach do their condensed sets teach?

    FEDCHOIR_DATA=DATA python benchmarks/condensed_quality.py RUN… [--steps 400]

For every client of a finished Choir or FedDM run a small model with new weights is trained on the samples of all other
clients, and tested on the client's own private samples: once on their private samples, once on as many of each class as
a set has, and once on their sets. No test sample is used, so the figures may be used to choose options of condensation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from condensed_privacy import labelled
from fedchoir.condensation.audit import Labelled
from fedchoir.condensation.sample_space import Change, decode, for_network, siamese, unpack
from fedchoir.condensation.sets import join_sets
from fedchoir.core import checkpoint
from fedchoir.data.scenario import load_scenario
from fedchoir.experiments.config import make_plan, read_experiment
from fedchoir.models.registry import build
from fedchoir.payload import Payload
from fedchoir.utils.input_spec import InputSpec
from fedchoir.utils.rng import generator, seeded

MODELS = {"image": "simple_cnn@16", "series": "cnn1d", "table": "mlp", "tensor": "mlp", "text": "bag_of_embeddings"}
BATCH, LR = 64, 1e-3


def measure(folder: Path, steps: int) -> tuple[list[str], dict[str, list[float]]]:
    """Names of the clients, and the accuracy of each with what the model was trained on, in %."""
    plan = make_plan(read_experiment(folder / "experiment.toml"))
    params: Any = plan.params
    scenario = load_scenario(plan.experiment.scenario, seed=plan.experiment.seed, options=params)
    last = checkpoint.latest(folder / "checkpoint")
    if last is None:
        raise SystemExit(f"{folder} has no checkpoint")
    kept, classes = Payload(checkpoint.load(last, "server")), len(scenario.classes)
    own = [labelled(client.train, client.train) for client in scenario.clients]
    sets = [set_of(kept.under(f"set{k}"), scenario.inputs, params.formation) for k in range(len(own))]
    sources = {"private samples": own, "as many of them": [few(each, params.per_class) for each in own], "sets": sets}

    def accuracy(parts: Sequence[Labelled], k: int) -> float:
        others = [part for j, part in enumerate(parts) if j != k]
        return trained_accuracy(joined(others), own[k], scenario.inputs, classes, steps)

    found = {name: [accuracy(parts, k) for k in range(len(own))] for name, parts in sources.items()}
    return [client.name for client in scenario.clients], found


def set_of(kept: Payload, inputs: InputSpec, formation: int) -> Labelled:
    made = join_sets([kept], inputs)
    return Labelled(unpack(decode(made["samples"], formation)), made["labels"].repeat_interleave(formation**2))


def few(samples: Labelled, count: int) -> Labelled:
    order = torch.randperm(len(samples.labels), generator=generator(0, "as many"))
    labels = samples.labels[order]
    index = torch.cat([order[labels == c][:count] for c in labels.unique().tolist()])
    return Labelled(samples.samples[index], samples.labels[index])


def joined(parts: Sequence[Labelled]) -> Labelled:
    return Labelled(torch.cat([p.samples for p in parts]), torch.cat([p.labels for p in parts]))


def trained_accuracy(train: Labelled, test: Labelled, inputs: InputSpec, classes: int, steps: int) -> float:
    """Accuracy in % of the model trained on some samples, which are changed at random, and tested on others."""
    with seeded(0, "quality"):
        model = build(MODELS[inputs.modality], classes, inputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for step in range(steps):
        draw = generator(0, "quality", step)
        index = torch.randint(len(train.labels), (BATCH,), generator=draw)
        change: Callable[[torch.Tensor], torch.Tensor] = _change(inputs.modality, draw)
        loss = F.cross_entropy(model(for_network(change(train.samples[index]), inputs.modality)), train.labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        chosen = [model(for_network(part, inputs.modality)).argmax(dim=1) for part in test.samples.split(500)]
    return 100 * float((torch.cat(chosen) == test.labels).float().mean())


def _change(modality: str, draw: torch.Generator) -> Change:
    return (lambda samples: samples) if modality == "text" else siamese(modality, draw)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=400, help="of training (default: 400)")
    given = parser.parse_args(arguments)
    for folder in given.runs:
        clients, found = measure(folder, given.steps)
        print(f"{folder.name}: {', '.join(clients)}; mean")
        for name, values in found.items():
            print(f"  {name}: {', '.join(f'{value:.1f}' for value in values)}; {sum(values) / len(values):.1f}")


if __name__ == "__main__":
    main()
