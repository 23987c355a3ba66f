"""What is sent about DAGs and datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._api import Call, _encode, _get, _post, _present
from ..models import Page
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


def deploy(yaml: str, dry_run: bool, manual_cutover: bool) -> Call[DagDeployed]:
    query = {"dry_run": "true"} if dry_run else {}
    if manual_cutover:
        query["cutover"] = "manual"
    # The same text again is the same version.
    return Call(
        "POST",
        ("api", "v1", "dags"),
        DagDeployed.read,
        query=query,
        body=yaml.encode(),
        content_type="application/yaml",
        repeatable=True,
    )


def dags(cursor: str | None) -> Call[Page[DagSummary]]:
    return _get(["dags"], Page.reader(DagSummary.read), cursor=cursor)


def dag(name: str, version: int | None) -> Call[Dag]:
    return _get(["dags", name], Dag.read, version=version)


def versions(name: str, cursor: str | None) -> Call[Page[DagVersion]]:
    return _get(["dags", name, "versions"], Page.reader(DagVersion.read), cursor=cursor)


def cut_over(name: str, version: int) -> Call[DagSwitched]:
    return _post(["dags", name, "cutover"], DagSwitched.read, {"version": version}, True)


def roll_back(name: str) -> Call[DagSwitched]:
    # A second time would go back further.
    return _post(["dags", name, "rollback"], DagSwitched.read)


def trigger(dag: str, job: str, payload: Any, request_id: str | None) -> Call[JobTriggered]:
    body = _present(request_id=request_id, input=payload)
    return _post(["dags", dag, "jobs", job, "trigger"], JobTriggered.read, body, request_id is not None)


def datasets(dag: str | None, published: bool | None, cursor: str | None) -> Call[Page[DatasetSummary]]:
    words = {True: "true", False: "false", None: None}
    return _get(["datasets"], Page.reader(DatasetSummary.read), dag=dag, published=words[published], cursor=cursor)


def dataset(name: str, version: str | None, limit: int | None, cursor: str | None) -> Call[Dataset]:
    return _get(["datasets", name], Dataset.read, version=version, limit=limit, cursor=cursor)


def invalidate(
    name: str,
    partition_key: str | None,
    row_filter: Mapping[str, Any] | None,
    reason: str | None,
    request_id: str | None,
) -> Call[Invalidated]:
    scope = "partition" if row_filter is None else "row_range"
    rows = None if row_filter is None else dict(row_filter)
    body = _present(scope=scope, partition_key=partition_key, row_filter=rows, reason=reason)
    return Call(
        "POST",
        ("api", "v1", "datasets", name, "invalidate"),
        Invalidated.read,
        body=_encode(body),
        repeatable=request_id is not None,
        headers={} if request_id is None else {"Idempotency-Key": request_id},
    )


def publish(dataset: str, rows: Iterable[Mapping[str, Any]], key: str | None) -> Call[Published]:
    lines = b"".join(_encode(dict(row)) + b"\n" for row in rows)
    return Call(
        "POST",
        ("api", "v1", "buffers", dataset, "publish"),
        Published.read,
        body=lines,
        content_type="application/jsonl",
        repeatable=key is not None,
        headers={} if key is None else {"Idempotency-Key": key},
    )


def upload_bundle(zip_file: bytes) -> Call[Bundle]:
    # The same bytes again are the same bundle.
    return Call(
        "POST",
        ("api", "v1", "udf", "bundles"),
        Bundle.read,
        body=zip_file,
        content_type="application/zip",
        repeatable=True,
    )


def bundle(bundle_id: str) -> Call[Bundle]:
    return _get(["udf", "bundles", bundle_id], Bundle.read)


def dead_batches(dataset: str, cursor: str | None) -> Call[Page[DeadBatch]]:
    return _get(["buffers", dataset, "dead"], Page.reader(DeadBatch.read), cursor=cursor)


def replay(dataset: str, publish_ids: Sequence[str] | None) -> Call[Replayed]:
    body = _present(publish_ids=None if publish_ids is None else list(publish_ids))
    return _post(["buffers", dataset, "replay"], Replayed.read, body, True)
