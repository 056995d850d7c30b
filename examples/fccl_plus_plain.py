"""One round of FCCL+ in plain PyTorch, to be read from top to bottom.

Huang, Ye, Shi and Du, "Generalizable Heterogeneous Federated Cross-Correlation and Instance Similarity Learning",
TPAMI 2023. Equation numbers are the paper's, and `fccl_plus_round` is one communication epoch of its Algorithm 1.

    python examples/fccl_plus_plain.py

The script uses nothing of fedchoir. A client's model is any `nn.Module` with `features(images)`, B×d with a d of its
own, and `classify(features)`, B×C. Batches are passed in as lists, so the caller decides their order. Where the paper
leaves a choice open, the script takes fedchoir's default: each phase has one Adam per client, the teacher is in eval
mode, and the features and logits of a public batch come from one forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, log_softmax, normalize
from torch.optim import Adam

PublicBatches = Sequence[Tensor]  # images
PrivateBatches = Sequence[tuple[Tensor, Tensor]]  # images and labels


@dataclass(frozen=True)
class Options:
    """The paper's hyper-parameters, with its values."""

    off_diagonal: float = 0.0051  # λ, eq. 2
    similarity_temperature: float = 0.02  # μ, eq. 3
    omega: float = 3.0  # ω, eq. 6
    temperature: float = 3.0  # τ, eq. 8
    lr: float = 1e-3  # of Adam, in both phases


# -- losses ------------------------------------------------------------------------------------------------------------


def without_diagonal(square: Tensor) -> Tensor:
    """n×n → n×(n−1): each row without its diagonal entry."""
    n = len(square)
    return square[~torch.eye(n, dtype=torch.bool, device=square.device)].view(n, n - 1)


def standardise(z: Tensor) -> Tensor:
    """Φ and the denominator of eq. 1: each column of B×C with mean 0 and standard deviation 1 over the batch."""
    z = z - z[:1].detach()  # the mean below removes this shift; it makes a constant column exactly 0
    z = z - z.mean(dim=0)
    return z / z.square().mean(dim=0).clamp_min(1e-10).sqrt()


def fccm(z: Tensor, z_mean: Tensor, off_diagonal: float) -> Tensor:
    """Eq. 2, on the cross-correlation matrix M of eq. 1: Σ_u (1 − M_uu)² + λ Σ_{u≠v} (1 + M_uv)²."""
    m = standardise(z).T @ standardise(z_mean) / len(z)
    return (1 - m.diagonal()).square().sum() + off_diagonal * (1 + without_diagonal(m)).square().sum()


def instance_similarity(h: Tensor, temperature: float) -> Tensor:
    """Eq. 3 and 4: cosines between the samples of a batch over μ, each sample with all others, B×(B−1)."""
    return without_diagonal(normalize(h, dim=1) @ normalize(h, dim=1).T) / temperature


def fisl(s: Tensor, s_mean: Tensor) -> Tensor:
    """Eq. 5: KL(σ(S̄) ‖ σ(S)), mean over rows."""
    log_p, log_q = log_softmax(s_mean, dim=1), log_softmax(s, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()


def fntd(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Eq. 13 with the τ² of eq. 10: τ² Σ_{u≠y} p_T^u log(p_T^u / p_S^u), p = σ(z/τ) over all classes; batch mean."""
    log_p, log_q = log_softmax(teacher / temperature, dim=1), log_softmax(student / temperature, dim=1)
    terms = (log_p.exp() * (log_p - log_q)).scatter(1, labels.unsqueeze(1), 0.0)  # no term of the true class y
    return temperature**2 * terms.sum(dim=1).mean()


# -- the round ---------------------------------------------------------------------------------------------------------


def public_phase(models: Sequence[nn.Module], batches: PublicBatches, options: Options) -> None:
    """Collaborative updating: FCCM + ω·FISL (eq. 6) against the mean over all clients, on every public batch."""
    optimizers = [Adam(model.train().parameters(), lr=options.lr, fused=True) for model in models]
    for images in batches:
        # Every client sends its logits and similarities, before anyone learns from this batch.
        logits, similarities = [], []
        for model in models:
            h = model.features(images)
            logits.append(model.classify(h))
            similarities.append(instance_similarity(h, options.similarity_temperature))
        # The server sends back their means.
        z_mean = sum(z.detach() for z in logits) / len(models)
        s_mean = sum(s.detach() for s in similarities) / len(models)
        # Every client takes one step.
        for optimizer, z, s in zip(optimizers, logits, similarities, strict=True):
            step(optimizer, fccm(z, z_mean, options.off_diagonal) + options.omega * fisl(s, s_mean))


def local_phase(model: nn.Module, teacher: nn.Module, batches: PrivateBatches, options: Options) -> None:
    """Local updating: CE + FNTD (eq. 14) on the client's private batches, those of all local epochs."""
    optimizer = Adam(model.train().parameters(), lr=options.lr, fused=True)
    teacher.eval()
    for images, labels in batches:
        with torch.no_grad():
            z_teacher = teacher.classify(teacher.features(images))
        z = model.classify(model.features(images))
        step(optimizer, cross_entropy(z, labels) + fntd(z, z_teacher, labels, options.temperature))


def step(optimizer: Adam, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def fccl_plus_round(
    models: Sequence[nn.Module], public: PublicBatches, private: Sequence[PrivateBatches], options: Options
) -> None:
    """Algorithm 1, one communication epoch. Changes the models in place; ``private`` has one list per client."""
    teachers = [deepcopy(model) for model in models]  # θ^{e−1}: the models at the end of the previous round
    public_phase(models, public, options)
    for model, teacher, batches in zip(models, teachers, private, strict=True):
        local_phase(model, teacher, batches, options)


# -- a small demonstration ---------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A model in the two parts that FCCL+ needs."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features, self.classify = features, nn.Linear(width, 10)


def conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


NETS: dict[str, Callable[[], Net]] = {
    "MLP": lambda: Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU()), 96),
    "CNN": lambda: Net(nn.Sequential(conv(1, 16), nn.MaxPool2d(2), conv(16, 32), nn.Flatten()), 512),
    "deep CNN": lambda: Net(
        nn.Sequential(conv(1, 16), conv(16, 16), nn.MaxPool2d(2), conv(16, 32), conv(32, 32), nn.Flatten()), 512
    ),
}
DOMAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "inverted": lambda x: 1 - x,
    "blurred": lambda x: avg_pool2d(x, 3, stride=1, padding=1),
}


def batches_of(size: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The tensors' rows in a random order, in batches."""
    order = torch.randperm(len(tensors[0]))
    return [tuple(t[index] for t in tensors) for index in order.split(size)]


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """In percent."""
    return 100 * (model.eval().classify(model.features(images)).argmax(dim=1) == labels).float().mean().item()


def demo(rounds: int = 10, epochs: int = 5, seed: int = 0) -> None:
    """Three clients, each with its own architecture and 100 images of its own domain; 600 unlabeled public images."""
    from sklearn.datasets import load_digits

    torch.manual_seed(seed)
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
    *private, public, test = torch.randperm(len(x))[:1500].split([100, 100, 100, 600, 600])
    data = [(domain(x[index]), y[index]) for domain, index in zip(DOMAINS.values(), private, strict=True)]
    tests = [domain(x[test]) for domain in DOMAINS.values()]
    contrast = 2 * torch.rand(len(public), 1, 1, 1) - 1  # public images have any contrast from inverted to plain
    public_images = 0.5 + contrast * (x[public] - 0.5)

    alone = [net() for net in NETS.values()]
    together, options = deepcopy(alone), Options()
    for _ in range(rounds):
        public_batches = [images for (images,) in batches_of(128, public_images)]
        private_batches = [[batch for _ in range(epochs) for batch in batches_of(32, *own)] for own in data]
        fccl_plus_round(together, public_batches, private_batches, options)
        for model, batches in zip(alone, private_batches, strict=True):  # the same batches without the others
            optimizer = Adam(model.train().parameters(), lr=options.lr, fused=True)
            for images, labels in batches:
                step(optimizer, cross_entropy(model.classify(model.features(images)), labels))

    print(f"{'accuracy in %':22}{'alone':>16}{'FCCL+':>16}")
    print(f"{'client':10}{'model':12}" + 2 * f"{'intra':>9}{'inter':>7}")
    for k, (client, net) in enumerate(zip(DOMAINS, NETS, strict=True)):
        line = f"{client:10}{net:12}"
        for model in (alone[k], together[k]):
            scores = [accuracy(model, images, y[test]) for images in tests]
            intra = scores.pop(k)
            line += f"{intra:9.1f}{sum(scores) / len(scores):7.1f}"
        print(line)


if __name__ == "__main__":
    torch.set_num_threads(1)  # with tensors this small, threads only wait for each other
    start = time.perf_counter()
    demo()
    print(f"{time.perf_counter() - start:.1f} s")
