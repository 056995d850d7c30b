"""Real nodes with their own copy of the federation's file, an honest server, and one that asks for something else."""

from __future__ import annotations

import time

import pytest
from tests.deploy_e2e.conftest import SITES, Federation

pytestmark = pytest.mark.e2e
FIRST_ROUND_SECONDS = 60.0  # from the first command at a site to the end of round 1, with two sites on two cores


def test_nodes_do_what_they_agreed_to_and_refuse_the_rest(federation: Federation) -> None:
    honest = federation.write("honest", settings={"sync": "epoch"})
    start = time.monotonic()
    federation.join(honest)
    server = federation.serve(honest)
    federation.until(lambda: federation.events("honest"), server)
    first_round = time.monotonic() - start
    print(f"from node init to the end of round 1: {first_round:.0f} s")  # pytest -rP shows it
    federation.finished(server)
    assert len(federation.events("honest")) == 3
    assert not any(event["left_out"] for event in federation.events("honest"))
    assert first_round < FIRST_ROUND_SECONDS

    # a node that has agreed to nothing does not start, and a budget without noise is refused before that
    stranger = federation.node("red", "--work", "work-stranger")
    budget = federation.agree("red", federation.write("other", method="fedmd", wait=20), "--max-epsilon", "8")
    federation.finished(stranger, code=2)
    federation.finished(budget, code=2)
    assert "give --federation FILE, this site's copy of the federation's file" in federation.log("node-red.log")
    assert "dp_noise = 0; this site has a privacy budget, which counts noisy steps only" in federation.log(
        "init-red.log"
    )
    assert not (federation.folder / federation.policy("red", federation.folder / "other.toml")).exists()

    # the running nodes give nothing to a server that asks for another method
    federation.finished(federation.serve(federation.folder / "other.toml"), code=2)
    refusal = "refused: the server asks for 'fedmd', and the agreed file has 'fccl+'"
    for name in SITES:
        assert refusal in federation.log(f"node-{name}.log")
        assert f"{name}: {refusal}" in federation.log("serve.log")
    assert not federation.events("other")

    # all of that is in the site's own log
    lines = federation.fedchoir("node", "log", "--work", "work-green").splitlines()
    assert "green has agreed to" in lines[0]
    assert sum("sends logits 3 tensors with 160 numbers" in line for line in lines) == 3
    assert lines[-1].endswith(refusal)
