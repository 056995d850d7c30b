"""The phase in which a client condenses its private samples into a few synthetic ones."""

from functools import partial

import torch
from torch import Tensor

from fedchoir.condensation.matching import Embed, Goal, Goals, Recipe, condense, private_goal, start_noise
from fedchoir.condensation.networks import random_network
from fedchoir.condensation.private_release import Bank, check_scaling, release
from fedchoir.condensation.sample_space import for_network, pack, siamese, unpack
from fedchoir.condensation.text import private_statistics, write_texts
from fedchoir.condensation.text_release import noised_statistics
from fedchoir.core.private_training import noise_source
from fedchoir.data.samples import Samples
from fedchoir.methods.api import Client, Method
from fedchoir.methods.condensation_options import CondensingParams
from fedchoir.utils.rng import generator


class CondensationPhase(Method):
    """Condensation in the client, and the exchange of what it gives.

    Each client i keeps n synthetic samples s of every class c that minimise, by distribution matching (Zhao and Bilen),

        E_e Σ_c ‖ mean_{x ∈ D_i^c} e(A x) − mean_{s ∈ S_i^c} e(A s) ‖²

    with embedders e drawn anew for every step, the same at all clients, and one random change A of private and
    synthetic samples alike in each step. They start from noise. With ``formation`` f, one image holds f² smaller ones,
    which are enlarged before they are used.

    With ``release_noise`` σ the private samples are used once: sums of embeddings of unit length under R fixed random
    networks, and counts, leave them with Gaussian noise (`condensation.private_release`). That costs the ε of one
    Gaussian release, whatever is trained with it.

    Texts are token ids, and no gradient leads to them: their frequencies are matched instead (`condensation.text`).
    """

    Params = CondensingParams
    params: CondensingParams

    def check_private(self, samples: Samples) -> None:
        if self.params.release_noise:
            check_scaling(samples)

    def condense(self, client: Client) -> None:
        if self.spec.inputs.modality == "text":
            return self.condense_texts(client)
        inputs, recipe = self.spec.inputs, self.recipe
        start = start_noise(len(self.spec.classes), inputs.shape, recipe, inputs.modality, client.seed)
        if "own_set" in client.memory:
            start = unpack(client.stored_tensor("own_set"))
        goals, counts = self.noisy_goals(client) if self.params.release_noise else self.goals(client)
        owned = counts >= self.smallest
        distinct = self.distinct(counts)
        made, loss = condense(start.to(client.device), goals, owned, distinct, recipe, inputs.modality)
        client.log_loss("condense", loss)
        client.memory["own_set"], client.memory["own_classes"] = pack(made, inputs.modality), owned.float()

    @property
    def private_per_stored(self) -> float:
        """Private samples behind each different stored one, at least. Noise and frequencies need no such limit."""
        p = self.params
        unlimited = p.release_noise or self.spec.inputs.modality == "text"
        return 0.0 if unlimited else p.private_per_synthetic * p.formation**2

    @property
    def smallest(self) -> float:
        """A class with fewer private samples is not condensed."""
        return max(self.params.smallest_class, self.private_per_stored)

    def distinct(self, counts: Tensor) -> Tensor:
        """How many different ones each class gets of the samples that are stored."""
        per, most = self.private_per_stored, self.params.per_class
        return (counts / per).long().clamp(1, most) if per else torch.full((len(counts),), most)

    def condense_texts(self, client: Client) -> None:
        """New texts with the frequencies of the private ones' tokens (`condensation.text`)."""
        p, inputs, classes = self.params, self.spec.inputs, len(self.spec.classes)
        private = client.private.to("cpu")
        if p.release_noise:
            noise = noise_source(client, std=p.release_noise)
            found = noised_statistics(private, classes, inputs.vocabulary, p.release_noise, noise)
            client.noisy_releases += 1
        else:
            found = private_statistics(private, classes, inputs.vocabulary, p.smallest_class)
        owned = found.usable(p.smallest_class)
        made, loss = write_texts(found, owned, p.per_class, inputs.shape[0], client.generator("condense"))
        client.log_loss("condense", loss)
        client.memory["own_set"] = pack(made, inputs.modality).to(client.device)
        client.memory["own_classes"] = owned.float().to(client.device)

    def goals(self, client: Client) -> tuple[Goals, Tensor]:
        """What each step matches, with embedders and samples drawn anew, and the number of samples of each class."""
        p, counts, modality = self.params, client.class_counts(), self.spec.inputs.modality
        owned = counts >= self.smallest
        own = self.own_embedder(client) if p.embedders != "random" and self.model_is_trained(client) else None

        def goal(step: int) -> Goal:
            change = siamese(modality, generator(client.seed, "siamese", client.round, step))
            alone = p.embedders == "own" or step % 2
            embed = own if own is not None and alone else self.random_embedder(client, step)
            draw = client.generator("condense", step)
            return private_goal(client.private, owned, embed, change, p.condense_batch, draw)

        return goal, counts

    def noisy_goals(self, client: Client) -> tuple[Goals, Tensor]:
        """The same from one release with noise."""
        p = self.params
        bank = Bank.draw(self.spec.inputs, p.network_width, p.release_networks, client.seed, client.device)
        noise = noise_source(client, std=p.release_noise)
        released = release(client.private, bank, len(self.spec.classes), noise)
        client.noisy_releases += 1
        return partial(released.goal, bank), released.counts

    @property
    def recipe(self) -> Recipe:
        p = self.params
        return Recipe(p.per_class, p.formation, p.condense_steps, p.condense_lr, p.condense_batch)

    def random_embedder(self, client: Client, step: int) -> Embed:
        inputs, place = self.spec.inputs, (client.round, step)
        network = random_network(inputs, self.params.network_width, client.seed, *place).to(client.device)
        return lambda samples: network(for_network(samples, inputs.modality))

    def model_is_trained(self, client: Client) -> bool:
        """Before that, embedders are random and soft labels are the classes."""
        return bool(self.params.pretrain_epochs) or "own_set" in client.memory  # condensed in an earlier round

    def own_embedder(self, client: Client) -> Embed:
        model, transform = client.frozen_copy(client.snapshot()), self.transform(client)
        return lambda samples: model.features(transform(samples)).float()

    def transform(self, client: Client) -> Embed:
        """From the space of condensation to what a model takes."""
        transform = client.private.transform if self.spec.inputs.modality == "image" else None
        return (lambda samples: samples) if transform is None else transform
