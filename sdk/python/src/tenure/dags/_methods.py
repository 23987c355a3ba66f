"""The parts of the clients that are about DAGs and datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from .. import _api
from ..models import Json, Page
from . import _calls
from ._models import (
    Bundle,
    Dag,
    DagDeployed,
    DagSummary,
    DagSwitched,
    DagVersion,
    Dataset,
    DatasetSummary,
    DeadBatch,
    Invalidated,
    JobTriggered,
    Published,
    Replayed,
)

T = TypeVar("T")


class DagMethods:
    """The part of `Client` that is about DAGs and datasets."""

    def _call(self, call: _api.Call[T]) -> T:
        raise NotImplementedError

    def deploy_dag(self, yaml: str, *, dry_run: bool = False, manual_cutover: bool = False) -> DagDeployed:
        """Deploys a DAG from its YAML. Raises `errors.InvalidDag` with every error of the text."""
        return self._call(_calls.deploy(yaml, dry_run, manual_cutover))

    def dags(self, *, cursor: str | None = None) -> Page[DagSummary]:
        """One page of DAGs, by name."""
        return self._call(_calls.dags(cursor))

    def dag(self, name: str, *, version: int | None = None) -> Dag:
        """The active version of a DAG, or the one with this number."""
        return self._call(_calls.dag(name, version))

    def dag_versions(self, name: str, *, cursor: str | None = None) -> Page[DagVersion]:
        """One page of the versions of a DAG, newest first."""
        return self._call(_calls.versions(name, cursor))

    def cut_over_dag(self, name: str, version: int) -> DagSwitched:
        """Makes a version active. One that is active already stays so."""
        return self._call(_calls.cut_over(name, version))

    def roll_back_dag(self, name: str) -> DagSwitched:
        """Goes back to the version that was active before."""
        return self._call(_calls.roll_back(name))

    def trigger_job(self, dag: str, job: str, *, payload: Json = None, request_id: str | None = None) -> JobTriggered:
        """Fires a manual source. `payload` is the `input` of its task. The same `request_id` again names that task."""
        return self._call(_calls.trigger(dag, job, payload, request_id))

    def datasets(
        self, *, dag: str | None = None, published: bool | None = None, cursor: str | None = None
    ) -> Page[DatasetSummary]:
        """One page of datasets, by DAG, job and output."""
        return self._call(_calls.datasets(dag, published, cursor))

    def dataset(
        self, name: str, *, version: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Dataset:
        """A dataset by name or id, with one page of its partitions: `limit` and `cursor` are about these."""
        return self._call(_calls.dataset(name, version, limit, cursor))

    def invalidate_dataset(
        self,
        name: str,
        *,
        partition_key: str | None = None,
        row_filter: Mapping[str, Any] | None = None,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> Invalidated:
        """Says that a partition, or rows such as `{"block": {"gte": 5}}`, have changed: jobs that read them run again.

        The same `request_id` again is the same invalidation.
        """
        return self._call(_calls.invalidate(name, partition_key, row_filter, reason, request_id))

    def publish(self, dataset: str, rows: Iterable[Mapping[str, Any]], *, key: str | None = None) -> Published:
        """Publishes rows to a buffered dataset: all are written soon, or none. The same `key` is the same batch."""
        return self._call(_calls.publish(dataset, rows, key))

    def upload_bundle(self, zip_file: bytes) -> Bundle:
        """Uploads code that jobs run: a zip file with `bundle_manifest.json`. The same bytes are the same bundle."""
        return self._call(_calls.upload_bundle(zip_file))

    def bundle(self, bundle_id: str) -> Bundle:
        """A bundle by its id."""
        return self._call(_calls.bundle(bundle_id))

    def dead_batches(self, dataset: str, *, cursor: str | None = None) -> Page[DeadBatch]:
        """One page of batches that were rejected for good."""
        return self._call(_calls.dead_batches(dataset, cursor))

    def replay_batches(self, dataset: str, publish_ids: Sequence[str] | None = None) -> Replayed:
        """Tries rejected batches again: these, or all."""
        return self._call(_calls.replay(dataset, publish_ids))


class AsyncDagMethods:
    """The part of `AsyncClient` that is about DAGs and datasets."""

    async def _call(self, call: _api.Call[T]) -> T:
        raise NotImplementedError

    async def deploy_dag(self, yaml: str, *, dry_run: bool = False, manual_cutover: bool = False) -> DagDeployed:
        """Deploys a DAG from its YAML. Raises `errors.InvalidDag` with every error of the text."""
        return await self._call(_calls.deploy(yaml, dry_run, manual_cutover))

    async def dags(self, *, cursor: str | None = None) -> Page[DagSummary]:
        """One page of DAGs, by name."""
        return await self._call(_calls.dags(cursor))

    async def dag(self, name: str, *, version: int | None = None) -> Dag:
        """The active version of a DAG, or the one with this number."""
        return await self._call(_calls.dag(name, version))

    async def dag_versions(self, name: str, *, cursor: str | None = None) -> Page[DagVersion]:
        """One page of the versions of a DAG, newest first."""
        return await self._call(_calls.versions(name, cursor))

    async def cut_over_dag(self, name: str, version: int) -> DagSwitched:
        """Makes a version active. One that is active already stays so."""
        return await self._call(_calls.cut_over(name, version))

    async def roll_back_dag(self, name: str) -> DagSwitched:
        """Goes back to the version that was active before."""
        return await self._call(_calls.roll_back(name))

    async def trigger_job(
        self, dag: str, job: str, *, payload: Json = None, request_id: str | None = None
    ) -> JobTriggered:
        """Fires a manual source. `payload` is the `input` of its task. The same `request_id` again names that task."""
        return await self._call(_calls.trigger(dag, job, payload, request_id))

    async def datasets(
        self, *, dag: str | None = None, published: bool | None = None, cursor: str | None = None
    ) -> Page[DatasetSummary]:
        """One page of datasets, by DAG, job and output."""
        return await self._call(_calls.datasets(dag, published, cursor))

    async def dataset(
        self, name: str, *, version: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Dataset:
        """A dataset by name or id, with one page of its partitions: `limit` and `cursor` are about these."""
        return await self._call(_calls.dataset(name, version, limit, cursor))

    async def invalidate_dataset(
        self,
        name: str,
        *,
        partition_key: str | None = None,
        row_filter: Mapping[str, Any] | None = None,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> Invalidated:
        """Says that a partition, or rows such as `{"block": {"gte": 5}}`, have changed: jobs that read them run again.

        The same `request_id` again is the same invalidation.
        """
        return await self._call(_calls.invalidate(name, partition_key, row_filter, reason, request_id))

    async def publish(self, dataset: str, rows: Iterable[Mapping[str, Any]], *, key: str | None = None) -> Published:
        """Publishes rows to a buffered dataset: all are written soon, or none. The same `key` is the same batch."""
        return await self._call(_calls.publish(dataset, rows, key))

    async def upload_bundle(self, zip_file: bytes) -> Bundle:
        """Uploads code that jobs run: a zip file with `bundle_manifest.json`. The same bytes are the same bundle."""
        return await self._call(_calls.upload_bundle(zip_file))

    async def bundle(self, bundle_id: str) -> Bundle:
        """A bundle by its id."""
        return await self._call(_calls.bundle(bundle_id))

    async def dead_batches(self, dataset: str, *, cursor: str | None = None) -> Page[DeadBatch]:
        """One page of batches that were rejected for good."""
        return await self._call(_calls.dead_batches(dataset, cursor))

    async def replay_batches(self, dataset: str, publish_ids: Sequence[str] | None = None) -> Replayed:
        """Tries rejected batches again: these, or all."""
        return await self._call(_calls.replay(dataset, publish_ids))
