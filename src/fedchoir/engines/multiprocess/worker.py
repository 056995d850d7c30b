"""``python -m fedchoir.engines.multiprocess.worker``: a process with one device and a share of the clients.

It runs the ordinary `LocalEngine` over them and does what its parent's letters say, one after the other.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedchoir import methods
from fedchoir.engines.local.client_pool import KEPT
from fedchoir.engines.local.engine import LocalEngine
from fedchoir.engines.local.state_cache import file_name
from fedchoir.engines.messages import Envelope, pack_reply, unpack_action, unpack_task
from fedchoir.engines.multiprocess.data_transfer import unpack_public, unpack_scenario
from fedchoir.engines.multiprocess.pipe import Pipe
from fedchoir.payload import Payload
from fedchoir.utils.devices import full_memory
from fedchoir.utils.errors import UsageError


class Worker:
    """Turns letters into calls of the engine. What its functions yield goes back to the parent."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._engine: LocalEngine
        self._device: torch.device

    def serve(self) -> None:
        """Do what comes until the parent is gone."""
        while True:
            letter = self._pipe.receive()
            try:
                for answer in getattr(self, f"do_{letter.header['do']}")(letter):
                    self._pipe.send(answer)
                self._pipe.send(Envelope({"said": "done", "seconds": self._engine.seconds}))
            except UsageError as error:
                self._pipe.send(Envelope({"said": "failed", "why": str(error), "usage": True}))
            except OSError:
                raise
            except torch.OutOfMemoryError:
                self._pipe.send(Envelope({"said": "failed", "why": full_memory(self._device), "usage": False}))
            except Exception as error:
                traceback.print_exc()
                why = f"{type(error).__name__}: {error}".splitlines()[0]
                self._pipe.send(Envelope({"said": "failed", "why": why, "usage": False}))

    def do_begin(self, letter: Envelope) -> Iterator[Envelope]:
        told = letter.header
        self._device = device = torch.device(told["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = told["precision"] != "fp32"
        cls = methods.get(told["method"])
        self._engine = LocalEngine(
            cls(cls.Params(**told["settings"]), unpack_task(told["task"])),
            unpack_scenario(letter, told["scenario"]),
            unpack_public(letter, told["public"]),
            device=device,
            precision=told["precision"],
            fused=told["lean"],
            progress=lambda client, phase: self._say("progress", client=client, phase=phase),
            share=told["share"],
            budget=float(told["budget"]),
            folder=Path(told["folder"]) if told["folder"] else None,
        )
        yield from ()

    def do_ask(self, letter: Envelope) -> Iterator[Envelope]:
        told = letter.header
        self._engine.clients.global_elsewhere = told["global"]
        actions = [unpack_action(letter, packed, self._engine.method) for packed in told["actions"]]
        for reply in self._engine.execute(told["clients"], actions, told["round"]):
            answer = pack_reply(reply.payloads, {}, {})
            answer.header |= {"said": "reply", "client": reply.client, "report": dict(reply.report)}
            yield answer

    def do_evaluate(self, letter: Envelope) -> Iterator[Envelope]:
        yield Envelope({"said": "rows", "rows": self._engine.evaluate(self._weights(letter))})

    def do_score(self, letter: Envelope) -> Iterator[Envelope]:
        weights = self._weights(letter)
        assert weights is not None
        yield Envelope({"said": "row", "row": self._engine.score(weights, letter.header["tests"])})

    def do_states(self, letter: Envelope) -> Iterator[Envelope]:
        """Tensors of a state may share memory: each travels on its own. What the checkpoint holds has none."""
        self._engine.clients.global_elsewhere = letter.header["global"]
        for name, tensors in self._engine.states():
            if tensors is None:
                yield Envelope({"said": "state", "name": name})
                continue
            copies = Payload({key: t.detach().cpu().clone() for key, t in tensors.items()})
            yield Envelope({"said": "state", "name": name}, [copies.to_bytes()])

    def do_load(self, letter: Envelope) -> Iterator[Envelope]:
        """The parent is asked for one state after the other, all of them now: later it will not listen."""

        def read(name: str) -> dict[str, Tensor]:
            self._say("want", name=name)
            return dict(self._pipe.receive().get(0))

        kept = read(KEPT)
        here = set(self._engine.clients.here) & set(kept["kept"].tolist())
        states = {KEPT: kept} | {name: read(name) for name in map(file_name, sorted(here))}
        self._engine.load(states.__getitem__)
        yield from ()

    def do_shapes(self, letter: Envelope) -> Iterator[Envelope]:
        yield Envelope({"said": "shapes"}, [Payload(self._engine.model_shapes()).to_bytes()])

    def _weights(self, letter: Envelope) -> dict[str, Tensor] | None:
        number = letter.header["weights"]
        return None if number is None else dict(letter.get(number))

    def _say(self, said: str, **facts: Any) -> None:
        self._pipe.send(Envelope({"said": said, **facts}))


def _leave_with_the_parent() -> None:
    """When the parent is gone, even killed, our standard input ends: do not go on unseen."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too and ends us
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        Worker(Pipe(int(sys.argv[1]))).serve()
    except (EOFError, OSError):
        os._exit(1)


if __name__ == "__main__":
    main()
