"""Real nodes with their own copy of the federation's file, an honest server, and one that asks for something else."""

from __future__ import annotations

import shutil

import pytest
from tests.deploy_e2e.conftest import SITES, Federation

pytestmark = pytest.mark.e2e


def test_nodes_do_what_they_agreed_to_and_refuse_the_rest(federation: Federation) -> None:
    honest = federation.write("honest", settings={"sync": "epoch"})
    for name in SITES:
        agreed = shutil.copy(honest, federation.folder / f"agreed-{name}.toml")
        keys = ("--key", f"keys/{name}", "--ca", "keys/ca.crt")
        federation.node(name, *keys, "--federation", str(agreed), "--max-epsilon", "8")
    server = federation.serve(honest)
    federation.finished(server)
    assert len(federation.events("honest")) == 3
    assert not any(event["left_out"] for event in federation.events("honest"))

    other = federation.write("other", method="fedmd", wait=15, settings={"sync": "epoch"})
    server = federation.serve(other)
    federation.finished(server, code=2)  # no site takes part
    for name in SITES:
        log = federation.log(f"node-{name}.log")
        assert "refused: the server asks for 'fedmd', and the agreed file has 'fccl+'" in log
    assert not federation.events("other")
