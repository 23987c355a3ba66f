"""What comes back about DAGs and datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..models import Json, Model, Page, Word, _many, _word


class VersionState(Word):
    """State of a version of a DAG."""

    STAGING = "Staging"
    READY = "Ready"
    ACTIVE = "Active"
    SUPERSEDED = "Superseded"
    ROLLED_BACK = "RolledBack"
    ABANDONED = "Abandoned"


@dataclass(frozen=True, kw_only=True)
class DagProblem(Model):
    """An error or a warning about the text of a DAG."""

    #: Counted from 1, like `column`.
    line: int
    column: int
    field: str
    code: str
    message: str
    job: str | None = None


@dataclass(frozen=True, kw_only=True)
class DagDeployed(Model):
    name: str
    version: int
    yaml_hash: str
    state: VersionState = field(metadata=_word(VersionState))
    dry_run: bool
    #: None for a dry run of a version that does not exist yet.
    dag_version_id: str | None = None
    #: Jobs whose definition is new or differs from that of the active version.
    changed_jobs: list[str] = field(default_factory=list)
    #: Jobs whose outputs are computed again.
    rebuild_jobs: list[str] = field(default_factory=list)
    kept_jobs: list[str] = field(default_factory=list)
    removed_jobs: list[str] = field(default_factory=list)
    warnings: list[DagProblem] = field(default_factory=list, metadata={"read": _many(DagProblem.read)})


@dataclass(frozen=True, kw_only=True)
class DagSummary(Model):
    name: str
    latest_version: int
    #: Of the version that waits to become active, or else of the latest one.
    state: VersionState = field(metadata=_word(VersionState))
    updated_at: str
    active_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobTasks(Model):
    """How many tasks a job has."""

    queued: int
    running: int
    #: Failed for good.
    failed: int


@dataclass(frozen=True, kw_only=True)
class DagFrom(Model):
    """What an input reads: `job` and `output`, or `dataset`."""

    job: str | None = None
    output: int | None = None
    dataset: str | None = None


@dataclass(frozen=True, kw_only=True)
class DagInput(Model):
    input_index: int
    alias: str
    #: `from` on the wire.
    source: DagFrom | None = None
    dataset_uuid: str
    dataset_name: str | None = None
    #: The version that it reads now.
    dataset_version: str | None = None
    #: `where` on the wire, as it was written.
    condition: Json = None

    @classmethod
    def of(cls, data: Any) -> DagInput:
        """Reads an input; two of its names are words of Python."""
        if isinstance(data, dict):
            data = {**data, "condition": data.get("where")}
        read = cls.read(data)
        origin = DagFrom.read(read.raw.get("from") or {})
        return cls(**{**read.__dict__, "source": origin})


@dataclass(frozen=True, kw_only=True)
class DagOutput(Model):
    output_index: int
    dataset_uuid: str
    dataset_version: str
    dataset_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class DagJob(Model):
    name: str
    #: `source` or `reactive`.
    activation: str
    runtime: str
    operator: str
    queue: str
    tasks: JobTasks = field(metadata={"read": JobTasks.read})
    #: Of a source: `cron`, `webhook`, `manual` or `always_on`.
    source: str | None = None
    execution_strategy: str | None = None
    inputs: list[DagInput] = field(default_factory=list, metadata={"read": _many(DagInput.of)})
    outputs: list[DagOutput] = field(default_factory=list, metadata={"read": _many(DagOutput.read)})


@dataclass(frozen=True, kw_only=True)
class Dag(Model):
    """A DAG: its active version, or the one that was asked for."""

    name: str
    #: The version that is shown.
    version: int
    latest_version: int
    state: VersionState = field(metadata=_word(VersionState))
    updated_at: str
    yaml: str
    active_version: int | None = None
    jobs: list[DagJob] = field(default_factory=list, metadata={"read": _many(DagJob.read)})

    def job(self, name: str) -> DagJob:
        """The job of this name; KeyError if there is none."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise KeyError(name)


@dataclass(frozen=True, kw_only=True)
class RebuildProgress(Model):
    total: int
    done: int
    #: Failed for good or canceled.
    failed: int


@dataclass(frozen=True, kw_only=True)
class DagVersion(Model):
    version: int
    dag_version_id: str
    yaml_hash: str
    state: VersionState = field(metadata=_word(VersionState))
    created_at: str
    rebuild: RebuildProgress = field(metadata={"read": RebuildProgress.read})
    previous_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class RepointedDataset(Model):
    """A dataset whose current version is another one now; `raw["from"]` is the one before."""

    dataset_uuid: str
    to: str | None = None


@dataclass(frozen=True, kw_only=True)
class DagSwitched(Model):
    canceled_tasks: int
    active_version: int | None = None
    previous_version: int | None = None
    datasets: list[RepointedDataset] = field(default_factory=list, metadata={"read": _many(RepointedDataset.read)})


@dataclass(frozen=True, kw_only=True)
class JobTriggered(Model):
    task_id: str
    #: False if the same request had created the task before.
    created: bool


@dataclass(frozen=True, kw_only=True)
class DatasetProducer(Model):
    dag: str
    job: str
    output_index: int


@dataclass(frozen=True, kw_only=True)
class DatasetSummary(Model):
    dataset_uuid: str
    write_mode: str
    producer: DatasetProducer = field(metadata={"read": DatasetProducer.read})
    #: None if it is not published.
    name: str | None = None
    storage: str | None = None
    current_version: str | None = None
    #: The highest cursor that was produced.
    cursor: int | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetVersion(Model):
    dataset_version: str
    current: bool
    generation: int
    created_at: str
    cursor: int | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetConsumer(Model):
    dag: str
    job: str
    #: None if it has read nothing yet.
    value: int | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetCursor(Model):
    produced: int | None = None
    consumers: list[DatasetConsumer] = field(default_factory=list, metadata={"read": _many(DatasetConsumer.read)})


@dataclass(frozen=True, kw_only=True)
class DatasetPartition(Model):
    partition_key: str
    #: How often it was invalidated.
    generation: int
    start: int | None = None
    end: int | None = None
    #: None until something was committed.
    location: str | None = None
    row_count: int | None = None
    bytes: int | None = None
    materialized_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class LineageEntry(Model):
    """An output of a job, or a job without outputs."""

    dag: str
    job: str
    #: 1 for what is read or reads directly.
    distance: int
    reads: list[str] = field(default_factory=list)
    output_index: int | None = None
    dataset_uuid: str | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Lineage(Model):
    """Nearest first."""

    upstream: list[LineageEntry] = field(default_factory=list, metadata={"read": _many(LineageEntry.read)})
    downstream: list[LineageEntry] = field(default_factory=list, metadata={"read": _many(LineageEntry.read)})


@dataclass(frozen=True, kw_only=True)
class Dataset(Model):
    dataset_uuid: str
    write_mode: str
    producer: DatasetProducer = field(metadata={"read": DatasetProducer.read})
    cursor: DatasetCursor = field(metadata={"read": DatasetCursor.read})
    partitions: Page[DatasetPartition] = field(metadata={"read": Page.reader(DatasetPartition.read)})
    lineage: Lineage = field(metadata={"read": Lineage.read})
    name: str | None = None
    storage: str | None = None
    current_version: str | None = None
    schema: dict[str, Any] | None = None
    #: Newest first.
    versions: list[DatasetVersion] = field(default_factory=list, metadata={"read": _many(DatasetVersion.read)})


@dataclass(frozen=True, kw_only=True)
class Bundle(Model):
    """Code that jobs run."""

    #: What `udf.bundle_id` of a job names.
    bundle_id: str
    #: Of the zip file.
    sha256: str
    runtime: str
    entrypoint: str
    files: int
    #: Of the zip file.
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Published(Model):
    """A batch of rows that was accepted."""

    publish_id: str
    #: The same batch had been accepted before.
    duplicate: bool


@dataclass(frozen=True, kw_only=True)
class BatchError(Model):
    code: str
    message: str
    #: Counted from 1; None if it is not about one line.
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeadBatch(Model):
    """A batch of rows that was rejected for good."""

    publish_id: str
    dataset_uuid: str
    receives: int
    error: BatchError = field(metadata={"read": BatchError.read})
    created_at: str
    dead_at: str
    #: The message. Long records are left out.
    original: Json = None


@dataclass(frozen=True, kw_only=True)
class Replayed(Model):
    replayed: int


@dataclass(frozen=True, kw_only=True)
class Invalidated(Model):
    invalidation_id: str
    #: What the generation of the scope became.
    generation: int
    #: How many jobs run again.
    dependents: int
