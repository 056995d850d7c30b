"""The server's loop with a tiny method and an engine without models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.fake_engine import TESTS, FakeClient, FakeDeferringEngine, FakeEngine, TinyMethod

from fedchoir.core import checkpoint
from fedchoir.core.actions import Exchange, Round, Script
from fedchoir.core.private_training import spent
from fedchoir.core.server import Server
from fedchoir.payload import MODEL, Payload, sends
from fedchoir.utils.errors import QuorumError, UsageError

ENGINES = [FakeEngine, FakeDeferringEngine]
EVERYONE = (0, 1, 2)


def run(method: TinyMethod, engine: FakeEngine, **options: Any) -> list[dict[str, Any]]:
    """The events of all rounds."""
    server = Server(method, engine, TESTS, **options)  # type: ignore[arg-type]
    return [event for events in server.rounds() for event in events]


def comparable(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "seconds"} for event in events]


# -- messages ----------------------------------------------------------------------------------------------------------


def test_setup_comes_once_and_steps_travel_with_the_next_exchange() -> None:
    engine = FakeEngine()
    events = run(TinyMethod(rounds=2), engine)
    one_round = [["store", "share"], ["update", "share_again"], ["train"]]
    assert engine.messages == [
        (0, EVERYONE, ["prepare"]),
        *((0, EVERYONE, names) for names in one_round),
        *((1, EVERYONE, names) for names in one_round),
    ]
    assert [event["messages"] for event in events] == [4 * 3, 3 * 3]


def test_an_engine_that_defers_gets_the_end_of_a_round_with_the_next_exchange() -> None:
    engine = FakeDeferringEngine()
    events = run(TinyMethod(rounds=2), engine)
    assert engine.messages == [
        (0, EVERYONE, ["prepare", "store", "share"]),
        (0, EVERYONE, ["update", "share_again"]),
        (1, EVERYONE, ["train", "store", "share"]),
        (1, EVERYONE, ["update", "share_again"]),
        (1, EVERYONE, ["train"]),  # flushed: there is no further exchange
    ]
    assert [event["messages"] for event in events] == [2 * 3, 3 * 3]


def test_bytes_are_those_of_the_payloads_in_both_directions() -> None:
    for event in run(TinyMethod(rounds=2), FakeEngine()):
        assert event["bytes_up"] == 2 * 3 * 4  # two exchanges, three clients, one float
        assert event["bytes_down"] == 3 * 4  # the first mean goes back


def test_only_the_participants_of_a_round_get_messages_but_setup_is_for_all() -> None:
    method, engine = TinyMethod(rounds=4, fraction=0.67), FakeEngine()
    events = run(method, engine)
    assert engine.messages[0] == (0, EVERYONE, ["prepare"])
    for index, event in enumerate(events):
        participants = method.spec.participants(index, 0.67)
        assert len(participants) == 2
        assert event["clients"] == [f"c{k}" for k in participants]
        assert {clients for r, clients, names in engine.messages[1:] if r == index} == {participants}


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_rounds_by_hand() -> None:
    """Values 1, 2, 3 with mean 2 become 1.5, 2, 2.5; training adds the number of the round."""
    engine = FakeEngine()
    first, second = run(TinyMethod(rounds=2), engine)
    assert first["accuracy"] == [[1.5, 2.5, 3.5], [2.0, 3.0, 4.0], [2.5, 3.5, 4.5]]
    assert first["intra_avg"] == pytest.approx((1.5 + 3.0 + 4.5) / 3)
    assert first["inter_avg"] == pytest.approx((3.0 + 3.0 + 3.0) / 3)
    assert first["losses"]["c2"] == {"public_loss": 0.5, "local_loss": 2.0}
    assert second["losses"]["c2"] == {"public_loss": 0.25, "local_loss": 12.0}
    assert [event["measures"] for event in (first, second)] == [{"total": 2.0}, {"total": 4.0}]
    assert engine.evaluated == [{"total": torch.tensor([2.0])}, {"total": torch.tensor([4.0])}]
    assert set(first["seconds"]) == {"total", "public", "local", "evaluate"}


def test_deferred_reports_and_accuracies_belong_to_the_round_that_they_are_about() -> None:
    def numbers(engine: FakeEngine) -> list[tuple[Any, ...]]:
        events = run(TinyMethod(rounds=4), engine)
        return [(e["round"], e["accuracy"], e["losses"], e["measures"], e["bytes_down"]) for e in events]

    assert numbers(FakeDeferringEngine()) == numbers(FakeEngine())


def test_an_event_is_yielded_when_its_reports_have_arrived() -> None:
    for engine, expected in ((FakeEngine(), [[0], [1], [2]]), (FakeDeferringEngine(), [[], [0], [1, 2]])):
        server = Server(TinyMethod(rounds=3), engine, TESTS)  # type: ignore[arg-type]
        yielded, settled = [], []
        for events in server.rounds():
            yielded.append([event["round"] for event in events])
            settled.append(server.settled)
        assert yielded == expected
        assert settled == [sum(map(len, expected[: n + 1])) for n in range(3)]


def test_a_column_beyond_the_tests_is_the_clients_own_share() -> None:
    method, engine = TinyMethod(rounds=1), FakeEngine()
    server = Server(method, engine, TESTS[:2])  # type: ignore[arg-type]
    ((event,),) = server.rounds()
    assert event["accuracy"] == [[1.5, 2.5], [2.0, 3.0], [2.5, 3.5]]
    assert event["own"] == [3.5, 4.0, 4.5]


@pytest.mark.parametrize(
    ("every", "rounds", "evaluated"), [(1, 4, [0, 1, 2, 3]), (4, 10, [3, 7, 8, 9]), (50, 4, [1, 2, 3]), (50, 2, [0, 1])]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_nth_round_is_evaluated_and_always_the_last_three(
    engine: Callable[[], FakeEngine], every: int, rounds: int, evaluated: list[int]
) -> None:
    events = run(TinyMethod(rounds=rounds, evaluate_every=every), engine())
    assert [event["round"] for event in events if event["accuracy"] is not None] == evaluated
    assert all(event["intra_avg"] is None for event in events if event["round"] not in evaluated)


def test_a_robust_rule_replaces_the_mean() -> None:
    class OneLiar(TinyMethod):
        @sends(x="1")
        def share(self, client: FakeClient) -> Payload:
            return Payload(x=torch.tensor([90.0 if client.index == 2 else client.value]))

    (plain,) = run(OneLiar(rounds=1), FakeEngine())
    (robust,) = run(OneLiar(rounds=1, robust="median"), FakeEngine())
    assert plain["accuracy"][0][0] > 10
    assert robust["accuracy"][0][0] == 1.5  # the median of 1, 2 and 90 is 2


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_below_quorum_the_run_stops(engine: Callable[[], FakeEngine]) -> None:
    broken = engine()
    broken.silent = {0, 2}
    with pytest.raises(QuorumError, match="only 1 of 3 clients sent a usable payload for share"):
        run(TinyMethod(), broken)
    broken = engine()
    broken.silent = {2}
    assert len(run(TinyMethod(), broken)) == 3
    broken = engine()
    broken.silent = {2}
    with pytest.raises(QuorumError, match="quorum is 90%"):
        run(TinyMethod(), broken, quorum=0.9)


def test_unusable_replies_are_recorded_and_not_aggregated() -> None:
    engine = FakeEngine()
    engine.errors = {2: "the scanner is on fire"}
    (event,) = run(TinyMethod(rounds=1), engine)
    why = "the scanner is on fire"
    assert event["left_out"] == [
        {"client": "c2", "exchange": "", "why": why},  # setup
        {"client": "c2", "exchange": "share", "why": why},
        {"client": "c2", "exchange": "share_again", "why": why},
        {"client": "c2", "exchange": "", "why": why},  # the last steps
    ]
    assert event["measures"] == {"total": 1.5}  # the mean of clients 0 and 1


def test_a_payload_that_differs_from_its_declaration_is_left_out() -> None:
    class Wrong(TinyMethod):
        @sends(weights=MODEL)
        def share(self, client: FakeClient) -> Payload:
            return Payload({"weights/weight": torch.zeros(3 if client.index == 1 else 2)})

        def round(self, r: Round) -> Script:
            yield Exchange(self.share)

    (event,) = run(Wrong(rounds=1), FakeEngine())
    assert [(out["client"], out["exchange"]) for out in event["left_out"]] == [("c1", "share")]
    assert "weights/weight has shape (3,)" in event["left_out"][0]["why"]


def test_a_client_without_an_evaluation_has_an_empty_row() -> None:
    engine = FakeDeferringEngine()
    engine.silent = {1}
    *_, last = run(TinyMethod(rounds=2), engine)
    assert last["accuracy"][1] is None
    assert last["intra_avg"] == pytest.approx((last["accuracy"][0][0] + last["accuracy"][2][2]) / 2)


def test_secure_aggregation_needs_an_engine_that_can_mask() -> None:
    with pytest.raises(UsageError, match="secure aggregation is simulated in one process"):
        Server(TinyMethod(), FakeEngine(), TESTS, secure=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="2 clients are too few"):
        Server(TinyMethod(clients=2), FakeEngine(2), TESTS, secure=True)  # type: ignore[arg-type]


# -- checkpoints -------------------------------------------------------------------------------------------------------


def run_until(engine: FakeEngine, folder: Path, stop: int, rounds: int = 5) -> tuple[list[dict[str, Any]], TinyMethod]:
    """Run with a checkpoint after every round, continuing from the last one; stop after so many rounds."""
    method = TinyMethod(rounds=rounds)
    server = Server(method, engine, TESTS, folder=folder)  # type: ignore[arg-type]
    server.resume()
    events = []
    for done in server.rounds():
        events += done
        server.save()
        if server.next_round == stop:
            break
    return events, method


@pytest.mark.parametrize("stop", [1, 2, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_has_identical_events_and_states(
    engine: Callable[[], FakeEngine], stop: int, tmp_path: Path
) -> None:
    straight, method = run_until(engine(), tmp_path / "straight", stop=5)
    before, _ = run_until(engine(), tmp_path / "resumed", stop=stop)
    resumed = engine()
    after, resumed_method = run_until(resumed, tmp_path / "resumed", stop=5)
    assert resumed.messages[0][0] == stop
    assert not any("prepare" in names for _, _, names in resumed.messages)  # setup does not run again
    assert comparable(before + after) == comparable(straight)
    assert torch.equal(method.server["total"], resumed_method.server["total"])
    files = [checkpoint.latest(tmp_path / name) for name in ("straight", "resumed")]
    for k in EVERYONE:
        one, two = (checkpoint.load(file, f"client-{k}")["value"] for file in files if file is not None)
        assert torch.equal(one, two)


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    server = Server(TinyMethod(), FakeEngine(), TESTS, folder=tmp_path)  # type: ignore[arg-type]
    assert not server.resume()
    assert server.next_round == 0


def test_the_engine_can_read_back_what_was_saved(tmp_path: Path) -> None:
    engine = FakeEngine()
    run_until(engine, tmp_path, stop=1)
    assert engine.folder is not None
    assert float(checkpoint.load(engine.folder, "client-2")["value"]) == engine.clients[2].value


# -- privacy budget ----------------------------------------------------------------------------------------------------

NOISY = {"dp_noise": 1.0, "local_batch": 16, "local_epochs": 1}


def test_the_run_stops_before_a_clients_epsilon_would_exceed_the_budget() -> None:
    costs = [spent(TinyMethod(**NOISY), [48], rounds)[0] for rounds in (2, 3)]
    budget = sum(costs) / 2
    events = run(TinyMethod(rounds=6, evaluate_every=50, **NOISY, dp_epsilon=budget), FakeEngine())
    assert [event["round"] for event in events] == [0, 1]
    assert [event["accuracy"] is not None for event in events] == [True, True]  # the last three of those that run
    assert events[-1]["privacy"] == {"delta": 1e-5, "epsilon": dict.fromkeys(("c0", "c1", "c2"), costs[0])}


def test_a_budget_below_the_first_round_is_refused() -> None:
    with pytest.raises(UsageError, match=r"dp_epsilon = 0\.01 is not possible .* the first round would exceed it"):
        run(TinyMethod(**NOISY, dp_epsilon=0.01), FakeEngine())
