"""Flower's control API on a real SuperLink: only the process that started it can list nodes, revoke or stop runs."""

from __future__ import annotations

import socket
from collections.abc import Callable

import httpx
import pytest
from flwr.cli.utils import CliClientHttpInterceptor
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from tests.deploy_e2e.conftest import Federation

from fedchoir.deploy.config import read_federation
from fedchoir.deploy.superlink import SuperLinkProcess
from fedchoir.deploy.superlink_program import SERVER_TOKEN

pytestmark = pytest.mark.e2e


def test_strangers_can_neither_list_nor_change_anything(federation: Federation) -> None:
    file = read_federation(federation.write("run", address=f"0.0.0.0:{federation.port}"))
    root = file.ca.read_bytes()
    with SuperLinkProcess.running(file, federation.folder / "superlink") as link:
        grid = link.start_run()
        run = grid.run.run_id
        nodes = link.registered_nodes()
        assert len(nodes) == 2
        # the certificate is for 127.0.0.1 and localhost, so that TLS does not hide what this test is about
        host = f"localhost:{federation.port}"
        interceptors = [CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        for token in (None, "", "0" * 64):
            control = ControlHttpClient.from_server_address(host, False, root, interceptors=interceptors)
            runtime = RuntimeHttpClient.from_server_address(host, False, root, interceptors=interceptors[1:])
            if token is not None:
                control._client.headers[SERVER_TOKEN] = runtime._client.headers[SERVER_TOKEN] = token
            attempts: list[Callable[[], object]] = [
                lambda c=control: c.ListNodes(ListNodesRequest()),
                lambda c=control: c.ListRuns(ListRunsRequest()),
                lambda c=control: c.UnregisterNode(UnregisterNodeRequest(node_id=nodes[0])),
                lambda c=control: c.RegisterNode(RegisterNodeRequest(public_key=b"x", name="mallory")),
                lambda c=control: c.StopRun(StopRunRequest(run_id=run)),
                lambda c=control: c.StartRun(StartRunRequest()),
                lambda r=runtime: r.AcquireTask(AcquireTaskRequest()),
            ]
            for attempt in attempts:
                with pytest.raises(httpx.HTTPStatusError, match="403"):
                    attempt()
        with httpx.Client(verify=False) as browser:
            for address in ("127.0.0.1", "127.0.0.2"):
                for path in ("/docs", "/openapi.json", "/health", "/v1/control/list-nodes"):
                    assert browser.get(f"https://{address}:{federation.port}{path}").status_code == 403
                odd = f"https://{address}:{federation.port}/v1/fleet/%2e%2e/control/list-nodes"
                assert browser.post(odd).status_code in (403, 404)
        assert link.registered_nodes() == nodes
        assert list(grid.get_node_ids()) == []  # the run goes on, and this process can still use it


def test_a_server_on_one_address_is_not_reached_through_another(federation: Federation) -> None:
    file = read_federation(federation.write("run", insecure=True))
    with SuperLinkProcess.running(file, federation.folder / "superlink") as link:
        assert link.registered_nodes() == []
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", federation.port), 5):
            pass
