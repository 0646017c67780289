"""The clients of TensorBoard, W&B, MLflow and trackio, as one protocol. Each is imported by its own process alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Run:
    """One policy of a task, under the same id as long as its home exists."""

    id: str
    name: str
    project: str
    config: Mapping[str, Any]
    folder: Path
    """For what a client writes on this machine."""
    step: int
    """The last one that was sent."""
    begun: float
    """Wall time, in seconds."""


class Tracker(Protocol):
    """One run."""

    def log(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """``when``: wall time in seconds."""

    def flush(self) -> None:
        """What was logged outlives this process."""

    def end(self, state: str) -> None:
        """The task is done, failed or cancelled."""


class TensorBoard:
    """Event files in a folder for each run."""

    def __init__(self, run: Run) -> None:
        events: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._event, self._summary = events.Event, import_module("tensorboard.compat.proto.summary_pb2").Summary
        writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
        self._writer: Any = writer(str(run.folder / run.name))
        begins = events.SessionLog(status=events.SessionLog.START)  # readers drop what came before from here on
        self._writer.add_event(self._event(wall_time=run.begun, step=run.step + 1, session_log=begins))

    def log(self, step: int, when: float, values: Mapping[str, float]) -> None:
        listed = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=when, step=step, summary=self._summary(value=listed)))

    def flush(self) -> None:
        self._writer.flush()

    def end(self, state: str) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = import_module("wandb").init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            reinit="create_new",
        )
        self._run.define_metric("*", step_metric="step")  # a held-out score may come after later steps

    def log(self, step: int, when: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def flush(self) -> None:
        """Its own process keeps what it was given."""

    def end(self, state: str) -> None:
        self._run.finish(exit_code=0 if state == "done" else 1)


class MLflow:
    """A run in the experiment that has the project's name; where is what MLFLOW_TRACKING_URI says."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        here = f"sqlite:///{run.folder / 'mlflow.db'}"
        self._metric: Any = import_module("mlflow.entities").Metric
        self._client: Any = import_module("mlflow.tracking").MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", here))
        experiment = self._client.get_experiment_by_name(run.project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        known = self._client.search_runs([number], f"tags.marlaas = '{run.id}'")
        made = known[0] if known else self._client.create_run(number, tags={"marlaas": run.id}, run_name=run.name)
        self._run = made.info.run_id
        self._client.update_run(self._run, status="RUNNING")
        for name, value in {} if known else _flat(run.config).items():
            self._client.log_param(self._run, name, str(value)[:500])

    def log(self, step: int, when: float, values: Mapping[str, float]) -> None:
        metrics = [self._metric(_word(name), value, int(1000 * when), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def flush(self) -> None:
        """Each batch is stored when the call returns."""

    def end(self, state: str) -> None:
        self._client.set_terminated(self._run, {"done": "FINISHED", "failed": "FAILED"}.get(state, "KILLED"))


class Trackio:
    """A run of trackio, on this machine unless TRACKIO_SPACE_ID names a Space."""

    def __init__(self, run: Run) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(run.folder))
        start = import_module("trackio").init
        self._run: Any = start(run.project, name=run.name, config=dict(run.config), resume="allow", embed=False)

    def log(self, step: int, when: float, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """A thread of its own writes within a second."""

    def end(self, state: str) -> None:
        self._run.finish()


CLIENTS: dict[str, Callable[[Run], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}
"""By the name in ``[track]``."""


def _word(name: str) -> str:
    """MLflow takes letters, digits and ``_-./: ``."""
    return "".join(letter if letter.isalnum() or letter in "_-./ :" else "_" for letter in name)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
