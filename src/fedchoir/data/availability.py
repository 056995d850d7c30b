"""Which data sets lie under the data root."""

from dataclasses import dataclass
from pathlib import Path

from fedchoir.data.image import datasets
from fedchoir.data.registry import ScenarioInfo
from fedchoir.data.series import har
from fedchoir.data.text import amazon_reviews


@dataclass(frozen=True)
class Availability:
    """A data set, its path relative to the data root (empty: it is missing), and how to get it."""

    name: str
    place: str
    get: str


def data_sets(root: Path | None) -> list[Availability]:
    """All data sets that do not come with fedchoir."""
    images = [Availability(name, datasets.found(name, root), source.get) for name, source in datasets.SOURCES.items()]
    reviews = [
        Availability(f"amazon-reviews/{domain}", amazon_reviews.found(domain, root), amazon_reviews.GET)
        for domain in amazon_reviews.DOMAINS
    ]
    return [*images, Availability("har", har.found(root), har.GET), *reviews]


def data_sets_of(scenario: ScenarioInfo, root: Path | None) -> list[Availability]:
    """The data sets of one scenario; none where they come with fedchoir."""
    names = {"har" if source.startswith("har/") else source for source in scenario.sources}
    return [known for known in data_sets(root) if known.name in names]
