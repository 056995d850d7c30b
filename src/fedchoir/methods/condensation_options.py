"""The options of methods whose clients condense their private samples."""

from typing import Literal

from fedchoir.methods.api import Field, Settings


class CondensingParams(Settings):
    per_class: int = Field(30, ge=1, description="n: synthetic samples of each class that a client sends")
    formation: int = Field(
        1, ge=1, le=4, description="images only: a sent image holds formation² images of a lower resolution"
    )
    soft_labels: bool = Field(
        False,
        description="send the predictions of the client's own trained model for its synthetic samples, beside classes",
    )
    embedders: Literal["random", "own", "both"] = Field(
        "random",
        description="networks under which class means are matched: new random ones, the client's own model once it is "
        "trained, or both in turn",
    )
    refresh: int = Field(0, ge=0, description="condense on and send again every so many rounds; 0: once")
    condense_steps: int = Field(150, ge=1, description="steps of a condensation, each under another network")
    condense_lr: float = Field(0.02, gt=0, description="learning rate: of the range of pixels, or in standard units")
    condense_batch: int = Field(32, ge=1, description="private samples of a class in a step of condensation")
    network_width: int = Field(32, ge=4, description="channels of the random networks; a quarter of an MLP's width")
    smallest_class: int = Field(
        5,
        ge=1,
        description="a class with fewer private samples is not condensed: its mean would show them; nor is a token "
        "that fewer private texts of the class have",
    )
    private_per_synthetic: float = Field(
        2.0,
        ge=0,
        description="not for texts: private samples of a class that stand behind each different synthetic one, at "
        "least; a smaller class repeats fewer samples, and with too few for one (with formation: for formation²) it is "
        "not condensed; 0: no limit",
    )
    release_noise: float = Field(
        0.0, ge=0, description="σ of differential privacy: noise of one release of class means; 0: no noise"
    )
    release_networks: int = Field(16, ge=1, description="R: random networks of a release with noise")
