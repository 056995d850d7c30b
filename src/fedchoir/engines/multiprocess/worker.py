"""``python -m fedchoir.engines.multiprocess.worker``: a process with one device and some of the clients.

It runs an ordinary `LocalEngine` and executes the calls of its parent one after the other.
"""

import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedchoir import methods
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.engines.local.client_pool import CLIENT_LIST
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.local.state_cache import state_name
from fedchoir.engines.messages import Envelope, unpack_action
from fedchoir.engines.multiprocess.data_transfer import from_frames, pack, to_frames, unpack
from fedchoir.utils.devices import full_gpu
from fedchoir.utils.errors import UsageError
from fedchoir.utils.subprocess_channel import Channel, parent_channel


class EngineWorker:
    """Executes calls of this class or of the engine. What a call returns or yields goes back to the parent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: LocalEngine
        self._device = torch.device("cpu")  # until it starts
        self._request: Envelope

    def serve(self) -> None:
        """Execute calls until the parent is gone."""
        while True:
            self._request = from_frames(self._channel.receive())
            header = self._request.header
            try:
                function = getattr(self, header["call"], None) or getattr(self._engine, header["call"])
                result = function(*unpack(self._request, header["arguments"]))
                values = result if isinstance(result, Iterator) else [] if result is None else [result]
                for value in values:
                    self._send("value", value)
                self._send("done", self._engine.seconds)
            except OSError:
                raise
            except UsageError as error:
                self._send("usage error", str(error))
            except Exception as error:
                if full := full_gpu(error, self._device):
                    self._send("gpu full", str(full))
                else:
                    traceback.print_exc()
                    self._send("error", f"{type(error).__name__}: {error}".splitlines()[0])

    def start(
        self, method: str, public_set: str, params: dict[str, Any], spec: FederationSpec, scenario: Any, public: Any,
        device: str, precision: str, folder: str | None, options: dict[str, Any],
    ) -> None:  # fmt: skip
        """Build the engine."""
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        cls = methods.get(method, public_set)
        self._engine = LocalEngine(
            cls(cls.Params(**params), spec), scenario, public, device=self._device, precision=precision,
            progress=lambda client, phase: self._send("progress", [client, phase]),
            folder=Path(folder) if folder else None, **options,
        )  # fmt: skip

    def execute(self, clients: Sequence[int], round_index: int, has_global: bool) -> Iterator[dict[str, Any]]:
        self._engine.clients.server_has_global_model = has_global
        packed = self._request.header["actions"]
        actions = [unpack_action(self._request, action, self._engine.method) for action in packed]
        for reply in self._engine.execute(clients, actions, round_index):
            yield {"client": reply.client, "payloads": reply.payloads, "report": reply.report}

    def notes(self) -> list[str]:
        return self._engine.notes

    def states(self, has_global: bool) -> Iterator[tuple[str, dict[str, Tensor] | None]]:
        self._engine.clients.server_has_global_model = has_global
        return self._engine.states()

    def saved(self, folder: str) -> None:
        self._engine.saved(Path(folder))

    def load(self) -> None:
        """Ask the parent for all states now: later it no longer answers."""

        def read(name: str) -> dict[str, Tensor]:
            self._send("value", name)
            return dict(from_frames(self._channel.receive()).get(0))

        stored = read(CLIENT_LIST)
        mine = set(self._engine.clients.indices) & set(stored["kept"].tolist())
        states = {CLIENT_LIST: stored} | {name: read(name) for name in map(state_name, sorted(mine))}
        self._engine.load(states.__getitem__)

    def _send(self, kind: str, value: Any) -> None:
        envelope = Envelope({"kind": kind})
        envelope.header["value"] = pack(envelope, value)
        self._channel.send(to_frames(envelope))


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        EngineWorker(parent_channel()).serve()
    except (EOFError, OSError):
        os._exit(1)


if __name__ == "__main__":
    main()
