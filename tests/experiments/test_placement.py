"""How many runs start at once: by cores, by the memory that is free, and by what earlier runs needed of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedchoir import Experiment
from fedchoir.experiments.placement import (
    AFTER_KILL,
    GPU_GROWTH,
    HOST,
    Placement,
    Places,
    kind_of,
    make_places,
    parse_jobs,
)
from fedchoir.experiments.sweep import Job
from fedchoir.utils.errors import UsageError
from fedchoir.utils.threads import cores

GPU = "GPU-0"


class Machine:
    """A placement on a machine whose free memory the test sets."""

    def __init__(self, places: int = 8, reserve: int = 0, **free: int) -> None:
        self.free = {HOST: 100, **free}
        self.placement = Placement(places, lambda place: self.free[place], reserve)

    def start(self, job: Job) -> None:
        assert self.placement.admits(job)
        self.placement.began(job)

    def measure(self, job: Job, host: int, **gpu: int) -> None:
        """Start a run that then takes so much of what is free and reports it."""
        self.start(job)
        self.report(job, host, **gpu)

    def report(self, job: Job, host: int, **gpu: int) -> None:
        for place, used in {HOST: host, **gpu}.items():
            self.free[place] -= used
        self.placement.measured(job, {HOST: host, **gpu})


def job(name: str, **values: Any) -> Job:
    experiment = Experiment(**{"method": "fedmd", "seed": int(name[-1]), "out": Path(name), "device": "cpu", **values})
    return Job(name, name, experiment)


A, B, C, D = (job(f"a{seed}") for seed in range(4))
OTHER = job("b0", method="fccl+")


def test_runs_of_one_kind_differ_in_seed_and_places_only() -> None:
    assert kind_of(A.experiment) == kind_of(job("x9", data_root=Path("data"), pretrained=Path("p")).experiment)
    for change in ({"method": "solo"}, {"rounds": 3}, {"settings": {"local_batch": 64}}, {"device": "cuda:1"}):
        assert kind_of(A.experiment) != kind_of(A.experiment.model_copy(update=change))
    orders = [{"local_batch": 64, "local_lr": 0.1}, {"local_lr": 0.1, "local_batch": 64}]
    one, two = (kind_of(job("a0", settings=settings).experiment) for settings in orders)
    assert one == two


def test_the_first_run_is_alone_until_it_has_reported_its_memory() -> None:
    machine = Machine()
    machine.start(A)
    assert not machine.placement.admits(B)
    assert not machine.placement.admits(OTHER)
    machine.report(A, host=10)
    assert machine.placement.admits(B)
    assert machine.placement.admits(OTHER)


def test_a_first_run_that_failed_leaves_the_next_one_alone() -> None:
    machine = Machine()
    machine.start(A)
    machine.placement.ended(A)
    machine.start(B)
    assert not machine.placement.admits(C)


def test_a_run_that_has_not_reported_yet_counts_as_if_it_still_took_all_that_it_needs() -> None:
    machine = Machine()
    machine.measure(A, host=40)
    machine.start(B)  # 60 are free, and B takes 40 of them at some time
    assert not machine.placement.admits(C)
    machine.placement.ended(A)
    machine.free[HOST] += 40
    assert machine.placement.admits(C)


def test_what_a_run_of_the_kind_needed_before_counts_for_one_that_is_smaller_so_far() -> None:
    machine = Machine()
    machine.measure(A, host=60)
    machine.placement.ended(A)
    machine.free[HOST] = 200
    machine.measure(B, host=20)  # may grow by 40; 180 are free
    machine.free[HOST] = 99
    assert not machine.placement.admits(C)
    machine.free[HOST] = 100
    assert machine.placement.admits(C)


def test_the_reserve_is_for_no_run() -> None:
    machine = Machine(reserve=20)
    machine.measure(A, host=40)
    machine.free[HOST] = 59
    assert not machine.placement.admits(B)
    machine.free[HOST] = 60
    assert machine.placement.admits(B)


def test_an_unknown_kind_is_expected_to_need_as_much_as_the_largest_one() -> None:
    machine = Machine()
    machine.measure(A, host=10)
    machine.measure(OTHER, host=30)
    machine.free[HOST] = 29
    assert machine.placement.admits(B)
    assert not machine.placement.admits(job("c0", method="solo"))


def test_a_kind_whose_process_was_killed_is_expected_to_need_more() -> None:
    machine = Machine()
    machine.measure(A, host=40)
    machine.placement.exceeded(A)
    machine.placement.ended(A)
    assert machine.placement.need(B) == {HOST: 40 * AFTER_KILL}
    machine.placement.began(OTHER)
    machine.placement.measured(OTHER, {HOST: 10})
    machine.free[HOST] = 59
    assert not machine.placement.admits(B)
    assert machine.placement.admits(job("b1", method="fccl+"))


def test_several_kills_are_one_burst_that_a_finished_run_ends() -> None:
    """Four runs of a kind die together. What one of them needs in the end is measured."""
    machine = Machine(**{GPU: 100})
    for one in (A, B, C, D):
        machine.placement.began(one)
        machine.placement.measured(one, {HOST: 40, GPU: 8})
    for one in (A, B, C, D):
        machine.placement.exceeded(one)
        machine.placement.ended(one)
    for one in (A, B):
        machine.placement.began(one)
        machine.placement.exceeded(one, gpu=True)
        machine.placement.ended(one)
    assert machine.placement.need(A) == {HOST: 40 * AFTER_KILL, GPU: 8 * GPU_GROWTH * AFTER_KILL}
    machine.start(A)
    machine.placement.measured(A, {HOST: 44, GPU: 9})
    machine.placement.ended(A, finished=True)
    assert machine.placement.need(B) == {HOST: 44, GPU: 9}


def test_a_run_whose_memory_was_used_up_waits_until_another_one_has_ended() -> None:
    for places in (Places(4), Machine().placement):
        for one in (A, B, C):
            places.began(one)
        places.measured(B, {HOST: 1})
        for one in (A, B):
            places.exceeded(one)
            places.ended(one)
        assert not places.admits(A)
        assert not places.admits(B)
        places.ended(C)
        assert places.admits(A)
        places.began(A)
        assert places.admits(B)
        places.ended(A)
        places.exceeded(A)
        assert places.admits(A)  # nothing else runs


def test_a_kill_before_anything_was_measured_changes_nothing() -> None:
    machine = Machine()
    machine.start(A)
    machine.placement.exceeded(A)
    machine.placement.ended(A)
    assert machine.placement.need(A) == {}
    assert machine.placement.admits(A)


def test_memory_of_a_gpu() -> None:
    machine = Machine(**{GPU: 100})
    machine.measure(A, host=1, **{GPU: 60})
    assert not machine.placement.admits(B)
    machine.placement.ended(A, finished=True)
    assert machine.placement.need(B)[GPU] == 60
    machine.placement.began(OTHER)
    machine.placement.measured(OTHER, {HOST: 1})  # on the cores
    assert not machine.placement.admits(B)
    machine.free[GPU] += 60
    assert machine.placement.admits(B)


def test_a_run_that_is_not_over_may_take_more_of_a_gpu() -> None:
    machine = Machine(**{GPU: 100})
    machine.measure(A, host=1, **{GPU: 40})
    assert machine.placement.need(B) == {HOST: 1, GPU: 40 * GPU_GROWTH}
    machine.free[GPU] = 59  # B takes 50, and A may take 10 more
    assert not machine.placement.admits(B)
    machine.free[GPU] = 60
    assert machine.placement.admits(B)
    machine.placement.measured(A, {HOST: 1, GPU: 44})
    machine.placement.ended(A)  # it failed
    assert machine.placement.need(B)[GPU] == 44 * GPU_GROWTH
    machine.placement.began(B)
    machine.placement.measured(B, {HOST: 1, GPU: 48})
    machine.placement.ended(B, finished=True)
    assert machine.placement.need(C)[GPU] == 48


def test_a_kind_that_found_a_gpu_full_is_expected_to_need_more_of_it() -> None:
    machine = Machine(**{GPU: 100})
    machine.measure(A, host=10, **{GPU: 40})
    machine.placement.exceeded(A, gpu=True)
    machine.placement.ended(A)
    assert machine.placement.need(B) == {HOST: 10, GPU: 40 * GPU_GROWTH * AFTER_KILL}


def test_runs_of_two_sweeps_may_have_one_name() -> None:
    machine = Machine()
    same = Job(A.name, A.label, A.experiment.model_copy(update={"out": Path("elsewhere") / A.name}))
    machine.measure(A, host=10)
    machine.start(same)
    machine.placement.ended(A)
    machine.placement.ended(same)
    machine.start(B)


def test_runs_come_one_at_a_time_where_free_memory_is_not_known() -> None:
    machine = Machine()
    machine.free[HOST] = 0
    machine.placement.began(A)
    machine.placement.measured(A, {HOST: 10})
    assert not machine.placement.admits(B)
    machine.placement.ended(A)
    assert machine.placement.admits(B)


def test_never_more_runs_than_cores() -> None:
    machine = Machine(places=2)
    machine.measure(A, host=1)
    machine.start(B)
    assert not machine.placement.admits(C)
    assert make_places("auto", 1000).places == cores()
    assert make_places("auto", 1).places == 1


def test_a_number_of_runs_at_once_asks_for_no_memory() -> None:
    places = make_places(3, 5)
    assert type(places) is Places
    for admitted in (A, B, C):
        assert places.admits(admitted)
        places.began(admitted)
    assert not places.admits(D)
    places.ended(B)
    assert places.admits(D)
    assert make_places(3, 2).places == 2


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", " ", "AUTO"])
def test_other_values_of_jobs_are_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_jobs(text)
    assert str(caught.value) == f"--jobs {text!r} is not possible: it should be how many runs at once, or auto"
