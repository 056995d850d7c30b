"""From a plan to what a run needs: the data, the public set and the method."""

from typing import Any

from fedchoir import methods
from fedchoir.core.federation_spec import ClientInfo, FederationSpec
from fedchoir.core.settings import Settings
from fedchoir.data.domain import Progress
from fedchoir.data.public import PublicSet, load_public
from fedchoir.data.samples import Samples
from fedchoir.data.scenario import Scenario, load_scenario
from fedchoir.data.validation import with_validation
from fedchoir.experiments.config import Plan
from fedchoir.experiments.protocol import first_rounds, models_of_clients, with_epochs_of_places
from fedchoir.utils.errors import UsageError


def prepare(plan: Plan, progress: Progress | None = None) -> tuple[methods.Method, Scenario, PublicSet | None]:
    """Load the data of a plan and construct its method."""
    experiment, params = plan.experiment, plan.params
    root, cache = experiment.data_root, experiment.cache
    data = params.model_copy(update={"cache": cache}) if cache else params
    scenario = load_scenario(
        experiment.scenario, root=root, seed=experiment.seed, options=data, progress=progress,
        strict="private" in experiment.settings,
    )  # fmt: skip
    scenario = with_validation(scenario, params.validation)
    options = public_options(plan)
    like = scenario.clients[0].train
    public = None
    if options is not None and plan.public != methods.CONDENSED:
        public = load_public(**options, like=like, root=root, cache=data.cache, progress=progress)
    check_augmentations(params, like, public)
    params = with_epochs_of_places(params, scenario)
    method = make_method(plan, params, make_spec(plan, scenario, public))
    for client in scenario.clients:
        method.check_private(client.train)
    return method, scenario, public


def make_method(plan: Plan, params: Settings, spec: FederationSpec) -> methods.Method:
    """The method of a plan in a federation."""
    method = methods.get(plan.experiment.method, plan.public)(params, spec)
    if method.public_set and "public_size" in plan.experiment.settings and params.public_size > method.spec.public_size:
        raise UsageError(
            f"public_size: {params.public_size} samples wanted, but {method.public_set} has {method.spec.public_size}"
        )
    return method


def check_augmentations(params: Settings, private: Samples, public: PublicSet | None) -> None:
    """Refuse an augmentation that the samples' modality does not have."""
    pairs = [("private_augment", params.private_augment, private)]
    pairs += [("public_augment", params.public_augment, public.samples)] if public else []
    for name, kind, samples in pairs:
        if kind not in ("none", *samples.augmentations):
            right = ", ".join(("none", *samples.augmentations))
            raise UsageError(f"{name} = {kind!r} is not possible for {samples.modality} samples; choose one of {right}")


def public_options(plan: Plan) -> dict[str, Any] | None:
    """The options of `load_public` for a plan's public set; None if it has none."""
    if plan.public is None:
        return None
    experiment, params = plan.experiment, plan.params
    return {
        "name": plan.public, "seed": experiment.seed, "size": params.public_size, "image_size": params.image_size,
        "aspect": params.aspect, "grey_bits": params.grey_bits,
        "normalisation": params.normalisation, "strict": "public_size" in experiment.settings,
        **({"held_out": params.held_out} if params.held_out else {}),
    }  # fmt: skip


def make_spec(plan: Plan, scenario: Scenario, public: PublicSet | None) -> FederationSpec:
    """What server and clients know of each other."""
    for client in scenario.clients:
        if len(client.train) < 2:
            raise UsageError(f"client {client.name} has {len(client.train)} training samples; it needs at least 2")
    clients = tuple(
        ClientInfo(
            name=client.name,
            model=model,
            train=len(client.train),
            test=len(scenario.tests[client.domain]),
            domain=client.domain,
        )
        for client, model in zip(scenario.clients, models_of_clients(plan, scenario), strict=True)
    )
    return FederationSpec(
        classes=scenario.classes,
        clients=clients,
        rounds=plan.rounds,
        seed=plan.experiment.seed,
        public_size=len(public) if public else 0,
        inputs=scenario.inputs,
        top_k=scenario.top_k,
        metric=plan.experiment.metric,
        held_out=plan.params.held_out,
        joins=first_rounds(plan.params, scenario),
        compress=plan.experiment.compress or "",
    )
