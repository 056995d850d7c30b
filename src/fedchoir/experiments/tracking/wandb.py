"""Sends the curves of a run to Weights & Biases; with WANDB_MODE=offline to files under ``DIR/wandb``."""

import uuid
from typing import Any

from fedchoir.experiments.config import Plan
from fedchoir.experiments.tracking.base import PROJECT, Tracker, description


class WeightsAndBiases(Tracker):
    """Account, server and mode come from wandb's own variables (WANDB_API_KEY, WANDB_BASE_URL, WANDB_MODE)."""

    name = "wandb"

    def open(self, plan: Plan, run: str | None) -> str:
        wandb: Any = self.library()
        run = run or uuid.uuid4().hex[:12]
        # only the numbers of the events: no output, source code, git state, host or load of this machine
        settings = wandb.Settings(
            console="off", disable_git=True, disable_code=True, quiet=True, x_disable_stats=True, x_disable_meta=True,
            x_disable_machine_info=True, x_save_requirements=False, disable_job_creation=True, host=PROJECT,
        )  # fmt: skip
        self._run: Any = wandb.init(
            project=PROJECT, id=run, name=plan.out.name, resume="allow", dir=str(plan.out), config=description(plan),
            settings=settings,
        )  # fmt: skip
        self._run.define_metric("*", step_metric="round")
        return run

    def send(self, round_: int, values: dict[str, float]) -> None:
        self._run.log({**values, "round": round_}, step=round_ + 1)  # the round before the first is -1

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
