"""The methods of `htfllib.py`: names and options on both sides, and what still differs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WIDTH = 512  # of all features
NETS = ("resnet18", "resnet34")
SHARED = f"torchvision.models:{NETS[0]}"  # HtFLlib's shared model of FML and FedKD is the first client's architecture


@dataclass(frozen=True)
class Pair:
    """A method on both sides. Of a value such as ``{lr}`` the script's own option is used."""

    theirs: str
    flags: dict[str, str] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    differs: str = ""


PROTO = {"feature_dim": WIDTH, "prototype_weight": "{lamda}", "distance": "mse", "predict_by": "prototypes"}
SERVER = {"server_epochs": "{server_epochs}", "server_batch": "{batch}", "server_lr": "{lr}"}
METHODS = {
    "solo": Pair("Local"),
    "fedproto": Pair(
        "FedProto", {"-lam": "{lamda}"}, PROTO | {"weighting": "uniform"},
        "HtFLlib collects prototypes during training, fedchoir after it",
    ),
    "lg-fedavg": Pair("LG-FedAvg", {}, {"feature_dim": WIDTH, "tested_head": "global", "weighting": "size"}),
    "fml": Pair(
        "FML", {"-al": "0.5", "-bt": "0.5"},
        {"meme": SHARED, "own_share": 0.5, "shared_share": 0.5, "weighting": "uniform"},
        "in HtFLlib KL is divided by the classes, too, both losses reach both models, and gradients are clipped at 10",
    ),
    "fedtgp": Pair(
        "FedTGP", {"-lam": "{lamda}", "-se": "{server_epochs}", "-mart": "100"},
        PROTO | SERVER | {"gap": "nearest", "margin": 100.0},
    ),
    "fd": Pair(
        "FD", {"-lam": "{lamda}"}, {"gamma": "{lamda}", "outputs": "probabilities", "exclude_own": False},
        "HtFLlib takes mean logits as targets of a cross-entropy, fedchoir mean probabilities",
    ),
    "fedgh": Pair(
        "FedGH", {"-se": "{server_epochs}", "-slr": "{lr}"}, SERVER | {"feature_dim": WIDTH, "tested_head": "global"}
    ),
    "fedkd": Pair(
        "FedKD", {"-mlr": "{lr}", "-Ts": "0.95", "-Te": "0.98"},
        {"shared_model": SHARED, "energy_start": 0.95, "energy_end": 0.98, "loss_floor": 0.0, "weighting": "uniform"},
        "HtFLlib compresses weights kernel by kernel, fedchoir updates as matrices; HtFLlib clips gradients at 10",
    ),
}  # fmt: skip
