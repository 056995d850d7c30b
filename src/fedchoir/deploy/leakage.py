"""Attack a site's own model before it joins: membership inference, and reconstruction from what it would send.

The site rehearses two rounds alone, with the method's own code and its own payloads in the place of the unseen'. The
attacks then get what a server would get. They are lower bounds: a better attack may find more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedchoir.condensation.audit import Audit, Labelled, audit
from fedchoir.condensation.sample_space import decode, plain, unpack
from fedchoir.condensation.sets import join_sets
from fedchoir.core.actions import Exchange, Script, Step, perform
from fedchoir.core.batches import PublicView
from fedchoir.core.client import Client
from fedchoir.core.evaluation import Predict, batch_for
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import ClientData
from fedchoir.deploy.config import FederationFile
from fedchoir.deploy.inspection import method_of, sent_each_round
from fedchoir.deploy.site_data import LocalSite, SiteData
from fedchoir.engines.local.client_factory import new_client, new_modules
from fedchoir.experiments.prepare import public_options
from fedchoir.methods.base import Method
from fedchoir.methods.condensing import Condensing
from fedchoir.payload import Payload
from fedchoir.privacy.membership import Estimate, distilled, loss_attack, losses
from fedchoir.privacy.noise import SecureRandom
from fedchoir.privacy.reconstruction import best_psnr, by_inversion, from_first_layer
from fedchoir.utils.devices import pick_device
from fedchoir.utils.rng import generator

ROUNDS = 2
MAX_SAMPLES = 2000  # training samples of the rehearsal, and test samples to compare them with
TARGETS = 4  # samples that gradient inversion tries to reconstruct
STEPS = 150
COPY = 0.5  # synthetic samples nearer to private ones, relative to the distance between those, are copies


@dataclass
class Rehearsal:
    """A client after some rounds alone, and the logits on public samples that it sent in the last one."""

    method: Method
    client: Client
    data: SiteData
    released: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    synthetic: Payload | None = None  # the synthetic samples that it sent last


def rehearse(federation: FederationFile, site: LocalSite, epochs: int) -> Rehearsal:
    """Run two rounds at this site alone, with at most ``epochs`` local epochs."""
    plan = federation.plan()
    params = plan.params.model_copy(update={"local_epochs": epochs})
    classes = federation.classes or tuple(site.domain(params).classes)
    data = site.prepare(params, classes, public_options(plan))
    train = data.train.subset(torch.arange(min(len(data.train), MAX_SAMPLES)))
    public = len(data.public) if data.public is not None else 0
    method = method_of(federation, site.model, classes, public, train.input_spec, epochs=epochs)
    device = pick_device(site.device)
    view = None
    if data.public is not None:
        view = PublicView(data.public, seed=method.spec.seed, kind=params.public_augment, device=device)
    index = next((k for k, each in enumerate(federation.sites) if each.name == site.name), 0)
    client = new_client(method, index, ClientData(site.name, train, site.name), view, device=device, precision="fp32")
    if params.dp_noise or method.payload_noise(params):
        client.secure_random = SecureRandom()
    rehearsal = Rehearsal(method, client, data)
    for number in range(ROUNDS):
        client.begin(number)
        rehearsal.released.clear()
        if number == 0:
            _run(rehearsal, method.setup())
        _run(rehearsal, method.round(method.spec.round(number, params)))
    return rehearsal


def _run(rehearsal: Rehearsal, script: Script) -> None:
    client, aggregated = rehearsal.client, None
    while True:
        try:
            action = script.send(aggregated)
        except StopIteration:
            return
        payloads = perform(client, action)
        aggregated = None
        if isinstance(action, Exchange):
            aggregator = action.aggregator()
            for k in range(len(rehearsal.method.spec.clients)):
                aggregator.add(k, payloads)
            aggregated = aggregator.result() if action.batches else aggregator.result()[0]
            if rehearsal.method.synthetic_samples & set(payloads[0]):
                rehearsal.synthetic = payloads[0]
            for batch, payload in zip(action.batches, payloads, strict=False):
                if "logits" in payload:
                    rehearsal.released.append((client.public_samples(batch), payload["logits"]))


def membership(rehearsal: Rehearsal) -> Iterator[tuple[str, Estimate]]:
    """The AUC of an attacker with the model, and of one with the released logits where there are any."""
    client, method = rehearsal.client, rehearsal.method
    seen, unseen = client.private, next(iter(rehearsal.data.tests.values()))
    unseen = unseen.subset(torch.arange(min(len(unseen), MAX_SAMPLES)))
    client.model.eval()
    yield "someone who has your model", _attack(lambda x: method.predict(client, x), seen, unseen, client)
    if rehearsal.released:
        student = new_modules(method, client.index).model.to(client.device)
        distilled(student, rehearsal.released)
        yield "someone who has what you send about public samples", _attack(student, seen, unseen, client)


def _attack(predict: Predict, seen: Samples, unseen: Samples, client: Client) -> Estimate:
    return loss_attack(*(_losses(predict, samples, client) for samples in (seen, unseen)))


@torch.no_grad()
def _losses(predict: Predict, samples: Samples, client: Client) -> Tensor:
    transform, step = samples.transform or client.private.transform, batch_for(client.device)
    found = []
    for start in range(0, len(samples), step):
        inputs = samples.inputs[start : start + step].to(client.device)
        labels = samples.labels[start : start + step].to(client.device)
        found.append(losses(predict(inputs if transform is None else transform(inputs)), labels))
    return torch.cat(found).cpu()


@dataclass(frozen=True)
class Reconstruction:
    """The best match between reconstructed and private samples, and between unrelated and private ones (dB)."""

    best: float
    chance: float
    samples: int


def reconstruction(rehearsal: Rehearsal) -> Reconstruction | None:
    """Reconstruct from one more local update, as a server that has the weights before and after it. None where the
    method sends no weights, or where samples are token ids."""
    client, method = rehearsal.client, rehearsal.method
    weights = any(sent.kind == "weights" for sent in next(sent_each_round(method, client.index)))
    if not weights or method.spec.inputs.modality == "text":
        return None
    before = {name: p.detach().clone() for name, p in client.model.named_parameters()}
    buffers = client.snapshot()
    client.begin(ROUNDS)
    perform(client, Step(method.local_update))
    update = {name: before[name] - p.detach() for name, p in client.model.named_parameters()}
    client.model.load_state_dict(buffers)
    client.model.eval()
    private = _inputs(client.private, client)
    candidates = from_first_layer(client.model, update, private.shape[1:]).to(private.device)
    count = min(TARGETS, len(private))
    labels = client.private.labels[:count].to(client.device)
    found = by_inversion(
        client.model, update, labels, private.shape[1:], steps=STEPS, generator=generator(method.spec.seed, "inversion")
    )
    unrelated = _inputs(next(iter(rehearsal.data.tests.values())), client)[: max(count, len(candidates))]
    best = max(best_psnr(candidates, private), best_psnr(found, private))
    return Reconstruction(best, best_psnr(unrelated, private), len(private))


def _inputs(samples: Samples, client: Client) -> Tensor:
    transform = samples.transform or client.private.transform
    inputs = samples.inputs.to(client.device)
    return inputs.float() if transform is None else transform(inputs)


def attack_synthetic(rehearsal: Rehearsal) -> Audit | None:
    """Attack the synthetic samples that the client would send; None where it sends none."""
    sent, method = rehearsal.synthetic, rehearsal.method
    if sent is None or not bool(sent["owned"].any()):
        return None
    assert isinstance(method, Condensing)
    inputs, train = method.spec.inputs, rehearsal.client.private
    test = next(iter(rehearsal.data.tests.values()))
    seen, unseen = (
        Labelled(plain(each, torch.arange(len(each)), train.transform).cpu(), each.labels.cpu())
        for each in (train, test.subset(torch.arange(min(len(test), MAX_SAMPLES))))
    )
    made = join_sets([{name: t.cpu() for name, t in sent.items()}], inputs)
    side = method.params.formation
    samples = Labelled(unpack(decode(made["samples"], side)), made["labels"].repeat_interleave(side**2))
    return audit(samples, seen, unseen, inputs, len(method.spec.classes), method.spec.seed)


def _describe_synthetic(found: Audit) -> Iterator[str]:
    yield "  do the synthetic samples that you would send show single private ones?"
    for how, auc in (("by the nearest synthetic sample", found.nearest), ("by class means", found.embedded)):
        verdict = "better than guessing" if auc.low > 0.5 else "not told apart from guessing"
        yield f"    training samples told from test samples {how}: {auc}, {verdict}"
    copies = "COPIES" if found.distance < COPY else "no copies"
    yield f"    their nearest private sample: {found.distance:.2f} of the distance between private neighbours, {copies}"
    if found.rarest is None:
        best, chance = found.best, found.chance
        yield f"    best match with a private sample: {best:.1f} dB; your test samples reach {chance:.1f} dB"
    else:
        yield f"    most tokens in a row of a private text: {found.best:.0f}; your test texts reach {found.chance:.0f}"
        yield f"    every token that you would send is in {found.rarest} or more of your texts of its class"


def describe_leakage(federation: FederationFile, site: LocalSite, epochs: int) -> Iterator[str]:
    """The results of both attacks, in plain words."""
    rehearsal = rehearse(federation, site, epochs)
    client = rehearsal.client
    test = min(len(next(iter(rehearsal.data.tests.values()))), MAX_SAMPLES)
    yield f"Attacks on {site.model}, {ROUNDS} rounds of {epochs} local epochs on your {len(client.private)} samples"
    yield f"  can your training samples be told from your {test} test samples? 0.5 is guessing, 1 is certainty (AUC)"
    for who, auc in membership(rehearsal):
        verdict = "better than guessing" if auc.low > 0.5 else "not told apart from guessing"
        yield f"    {who}: {auc}, {verdict}"
    if (attacked := attack_synthetic(rehearsal)) is not None:
        yield from _describe_synthetic(attacked)
    found = reconstruction(rehearsal)
    if found is None:
        yield "  can samples be reconstructed? Not tried: this method sends no weights (or samples are token ids)"
        return
    scale = "; above 30 dB two images look the same" if rehearsal.method.spec.inputs.modality == "image" else ""
    yield f"  can samples be reconstructed from the weights before and after a local phase? (PSNR{scale})"
    yield f"    best of {found.samples} samples: {found.best:.1f} dB; unrelated samples reach {found.chance:.1f} dB"
    verdict = "YES, at least partly" if found.best > max(found.chance + 3, 15) else "no better than unrelated samples"
    yield f"    {verdict}. Secure sums hide single updates, and noise (dp_noise) blurs them"
