"""Sends the curves of a run to MLflow: to MLFLOW_TRACKING_URI, or where MLflow keeps runs by default."""

import os
import re
import time
from typing import Any

from fedchoir.experiments.config import Plan
from fedchoir.experiments.tracking.base import PROJECT, Tracker, description

MAX_PARAMETER = 500  # characters
BATCH = 1000  # metrics in one request


class MLflow(Tracker):
    """The experiment's name is MLFLOW_EXPERIMENT_NAME, or fedchoir."""

    name = "mlflow"

    def open(self, plan: Plan, run: str | None) -> str:
        mlflow: Any = self.library()
        from mlflow.entities import Param

        self._client: Any = mlflow.MlflowClient()
        if run is not None:
            self._client.update_run(run, status="RUNNING")
            self._run = run
            return run
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        # the client adds no tags of its own: no user, source file or git commit
        self._run = str(self._client.create_run(experiment, run_name=plan.out.name).info.run_id)
        facts = description(plan).items()
        self._client.log_batch(self._run, params=[Param(key, str(value)[:MAX_PARAMETER]) for key, value in facts])
        return self._run

    def send(self, round_: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_allowed(name), float(value), now, round_) for name, value in values.items()]
        for k in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[k : k + BATCH], synchronous=True)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


def _allowed(name: str) -> str:
    """The name of a metric in the characters that MLflow accepts.

    >>> _allowed("accuracy of Zürich (A+B)/mean over tests")
    'accuracy of Zürich _A_B_/mean over tests'
    """
    return re.sub(r"[^\w\-. /:]", "_", name)
