"""Data on its way to a process: the images of its own clients, all test sets and the public set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.public import PublicSet
from fedchoir.data.scenario import ClientData, Scenario
from fedchoir.engines.messages import Envelope
from fedchoir.payload import Payload

Packed = dict[str, Any]


def pack_scenario(letter: Envelope, scenario: Scenario, share: Collection[int]) -> Packed:
    """A scenario of which only the clients of ``share`` have their private images; the others have none."""
    clients = [
        {
            "name": data.name,
            "home": data.domain,
            "train": _pack_images(letter, data.train if k in share else _none_of(data.train)),
        }
        for k, data in enumerate(scenario.clients)
    ]
    return {
        "name": scenario.name,
        "classes": scenario.classes,
        "clients": clients,
        "tests": _pack_sets(letter, scenario.tests),
        "own_tests": _pack_sets(letter, scenario.own_tests),
        "top_k": scenario.top_k,
        "notes": scenario.notes,
    }


def unpack_scenario(letter: Envelope, packed: Mapping[str, Any]) -> Scenario:
    clients = tuple(
        ClientData(client["name"], _unpack_images(letter, client["train"]), client["home"])
        for client in packed["clients"]
    )
    return Scenario(
        name=packed["name"],
        classes=tuple(packed["classes"]),
        clients=clients,
        tests={name: _unpack_images(letter, test) for name, test in packed["tests"].items()},
        own_tests={name: _unpack_images(letter, test) for name, test in packed["own_tests"].items()},
        top_k=packed["top_k"],
        notes=tuple(packed["notes"]),
    )


def pack_public(letter: Envelope, public: PublicSet | None) -> Packed | None:
    if public is None:
        return None
    return {
        "images": letter.add(Payload(images=public.images)),
        **{name: getattr(public, name) for name in ("name", "mean", "std", "notes", "digest")},
    }


def unpack_public(letter: Envelope, packed: Mapping[str, Any] | None) -> PublicSet | None:
    if packed is None:
        return None
    return PublicSet(
        name=packed["name"],
        images=letter.get(packed["images"])["images"],
        mean=tuple(packed["mean"]),
        std=tuple(packed["std"]),
        notes=tuple(packed["notes"]),
        digest=packed["digest"],
    )


def _pack_sets(letter: Envelope, sets: Mapping[str, ImageSet]) -> Packed:
    return {name: _pack_images(letter, images) for name, images in sets.items()}


def _pack_images(letter: Envelope, images: ImageSet) -> Packed:
    content = Payload(images=images.images, labels=images.labels)
    return {"content": letter.add(content), "mean": images.mean, "std": images.std}


def _unpack_images(letter: Envelope, packed: Mapping[str, Any]) -> ImageSet:
    content = letter.get(packed["content"])
    return ImageSet(content["images"], content["labels"], tuple(packed["mean"]), tuple(packed["std"]))


def _none_of(images: ImageSet) -> ImageSet:
    return ImageSet(images.images[:0], images.labels[:0], images.mean, images.std)
