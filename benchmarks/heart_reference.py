"""Heart disease without this package's training: scikit-learn's models, and FLamby's FedAvg in NumPy.

    python benchmarks/heart_reference.py

First, scikit-learn's logistic regression and gradient boosting, trained on each hospital's rows and on all rows, with
the accuracy on every hospital's test rows. They show what models without gradient descent reach.

Then FedAvg on a logistic regression as in FLamby (15 rounds of 100 batches of 4, SGD), over many seeds. A model with
one output begins with smaller weights than one with two, where their difference counts, and the steps are too few to
forget it. So seeds differ by several points, and two outputs are worse than one.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from fedchoir.data.options import DataOptions
from fedchoir.data.scenario import load_scenario

ROUNDS, BATCHES, BATCH, LR = 15, 100, 4, 0.001  # FLamby's

Rows = tuple[np.ndarray, np.ndarray]


def hospitals() -> tuple[tuple[str, ...], list[Rows], list[Rows]]:
    """Names, training rows and test rows; every hospital scales by the statistics of its own training rows."""
    scenario = load_scenario("heart", options=DataOptions(drop_first=True, test_encoder="domain"))
    trains = [client.train for client in scenario.clients]
    tests = [scenario.tests[client.domain] for client in scenario.clients]
    rows = [[(s.transform(s.inputs).double().numpy(), s.labels.numpy()) for s in sets] for sets in (trains, tests)]
    return tuple(client.name for client in scenario.clients), rows[0], rows[1]


def scikit_learn(names: Sequence[str], trains: list[Rows], tests: list[Rows]) -> None:
    """Print the accuracy of scikit-learn's models on every hospital's test rows."""
    everything = tuple(np.concatenate(parts) for parts in zip(*trains, strict=True))
    models = {
        "logistic regression": LogisticRegression(),
        "gradient boosting": HistGradientBoostingClassifier(random_state=0),
    }
    for title, model in models.items():
        print(f"\n{title}, trained on one hospital or on all; accuracy on the test rows of each")
        print(f"{'':14}" + "".join(f"{name:>14}" for name in names))
        for name, (x, y) in zip((*names, "all"), (*trains, everything), strict=True):
            if len(set(y)) == 1:  # Switzerland's training rows all have the disease
                row = [np.mean(test == y[0]) for _, test in tests]
            else:
                row = [model.fit(x, y).score(*test) for test in tests]
            print(f"{name:14}" + "".join(f"{100 * value:14.1f}" for value in row))


def fedavg(trains: list[Rows], tests: list[Rows], seed: int, outputs: int) -> list[float]:
    """The accuracy of FLamby's FedAvg on every hospital's test rows; ``outputs`` sets the spread of initial weights."""
    random = np.random.default_rng(seed)
    bound = trains[0][0].shape[1] ** -0.5  # PyTorch's initial weights of a linear layer
    drawn = random.uniform(-bound, bound, (outputs, trains[0][0].shape[1] + 1))
    weights = drawn[-1] - (drawn[0] if outputs == 2 else 0)
    sizes = np.array([len(y) for _, y in trains])
    for _ in range(ROUNDS):
        updated = []
        for x, y in trains:
            own, order = weights.copy(), np.empty(0, dtype=int)
            for _ in range(BATCHES):
                order = order if len(order) else random.permutation(len(y))
                index, order = order[:BATCH], order[BATCH:]
                inputs = with_bias(x[index])
                own -= LR * (probability(inputs @ own) - y[index]) @ inputs / len(index)
            updated.append(own)
        weights = np.average(updated, axis=0, weights=sizes)
    return [100 * np.mean((with_bias(x) @ weights > 0) == y) for x, y in tests]


def with_bias(x: np.ndarray) -> np.ndarray:
    return np.column_stack([x, np.ones(len(x))])


def probability(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50, help="of FedAvg")
    seeds = parser.parse_args().seeds
    names, trains, tests = hospitals()
    scikit_learn(names, trains, tests)
    print(f"\nFedAvg in NumPy, {seeds} seeds: mean ± standard deviation")
    for outputs in (1, 2):
        found = np.array([fedavg(trains, tests, seed, outputs) for seed in range(seeds)])
        cells = [f"{m:5.1f} ± {s:4.1f}" for m, s in zip(found.mean(0), found.std(0, ddof=1), strict=True)]
        print(f"{f'{outputs} outputs':14}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
