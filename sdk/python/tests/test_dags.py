"""DAGs and datasets, with both clients, against a real server."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from harness import ServerProcess

from tenure import AsyncClient, Client, errors
from tenure.dags import VersionState

DAG = """
name: {name}
jobs:
  - {{ name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: {{ kind: manual }} }}
  - name: decode
    activation: reactive
    runtime: worker
    operator: decode
    outputs: 1
    execution_strategy: PerPartition
    update_strategy: replace
    inputs: [{{ from: {{ job: import, output: 0 }}, alias: raw, where: "n > 1" }}]
    config: {{ n: {n} }}
publish:
  {name}: {{ from: {{ job: decode, output: 0 }} }}
"""


def text(name: str, n: int = 0) -> str:
    return DAG.format(name=name, n=n)


def new_name() -> str:
    return f"d{uuid4().hex}"


def test_a_dag_is_deployed_switched_and_rolled_back(client: Client) -> None:
    name = new_name()
    plan = client.deploy_dag(text(name), dry_run=True)
    assert (plan.dry_run, plan.dag_version_id, plan.changed_jobs) == (True, None, ["decode", "import"])
    with pytest.raises(errors.DagNotFound):
        client.dag(name)
    first = client.deploy_dag(text(name))
    assert (first.version, first.state, first.warnings) == (1, VersionState.ACTIVE, [])
    assert client.deploy_dag(text(name)).dag_version_id == first.dag_version_id
    dag = client.dag(name)
    assert (dag.active_version, dag.yaml) == (1, text(name))
    decode = dag.job("decode")
    assert decode.inputs[0].source is not None
    assert (decode.inputs[0].source.job, decode.inputs[0].condition) == ("import", "n > 1")
    assert (decode.outputs[0].dataset_name, decode.tasks.queued) == (name, 0)
    # There is nothing to rebuild it from.
    second = client.deploy_dag(text(name, 1), manual_cutover=True)
    assert second.rebuild_jobs == ["decode"]
    versions = client.dag_versions(name)
    assert [version.version for version in versions] == [2, 1]
    assert versions[1].state is VersionState.ACTIVE
    with pytest.raises(errors.NoPreviousVersion):
        client.roll_back_dag(name)
    with pytest.raises(errors.VersionNotFound):
        client.cut_over_dag(name, 9)
    assert client.cut_over_dag(name, 1).datasets == []
    assert name in {one.name for one in client.dags()}


def test_a_manual_source_is_triggered_once_per_request(client: Client) -> None:
    name = new_name()
    client.deploy_dag(text(name))
    made = client.trigger_job(name, "import", payload={"from": 7}, request_id="r-1")
    assert made.created
    again = client.trigger_job(name, "import", request_id="r-1")
    assert (again.created, again.task_id) == (False, made.task_id)
    assert client.dag(name).job("import").tasks.queued == 1
    assert client.get(made.task_id).operator == "import"
    with pytest.raises(errors.NotAManualSource):
        client.trigger_job(name, "decode")
    with pytest.raises(errors.JobNotFound, match="did you mean `import`"):
        client.trigger_job(name, "imports")


def test_a_dag_with_errors_tells_where_they_are(client: Client) -> None:
    wrong = text(new_name()).replace("job: import, output: 0", "job: imprt, output: 0")
    with pytest.raises(errors.InvalidDag) as caught:
        client.deploy_dag(wrong)
    (error,) = caught.value.errors
    assert (error["line"], error["job"], error["field"]) == (12, "decode", "inputs[0].from.job")
    assert error["code"] == "unknown_job"


def test_datasets_are_listed_shown_and_invalidated(client: Client) -> None:
    name = new_name()
    client.deploy_dag(text(name))
    (listed,) = client.datasets(dag=name, published=True)
    assert (listed.name, listed.producer.job, listed.write_mode) == (name, "decode", "direct")
    assert len(client.datasets(dag=name)) == 2
    dataset = client.dataset(name)
    assert dataset.dataset_uuid == listed.dataset_uuid == client.dataset(listed.dataset_uuid).dataset_uuid
    assert (len(dataset.partitions), dataset.versions[0].current) == (0, True)
    (upstream,) = dataset.lineage.upstream
    assert (upstream.job, upstream.distance) == ("import", 1)
    assert upstream.dataset_uuid is not None
    made = client.invalidate_dataset(upstream.dataset_uuid, partition_key="1-5", reason="reorg", request_id="i-1")
    assert (made.generation, made.dependents) == (1, 1)
    again = client.invalidate_dataset(upstream.dataset_uuid, partition_key="1-5", reason="reorg", request_id="i-1")
    assert again.invalidation_id == made.invalidation_id
    assert client.invalidate_dataset(name, row_filter={"n": {"gte": 5}}).dependents == 0
    with pytest.raises(errors.InvalidArgument):
        client.invalidate_dataset(name)
    with pytest.raises(errors.DatasetNotFound):
        client.dataset(f"{name}x")


def test_the_asynchronous_client_has_the_same_dags(server: ServerProcess) -> None:
    async def main() -> None:
        name = new_name()
        async with AsyncClient(server.url) as client:
            assert (await client.deploy_dag(text(name))).version == 1
            assert (await client.dag(name, version=1)).version == 1
            assert name in {one.name for one in await client.dags()}
            assert len(await client.dag_versions(name)) == 1
            assert (await client.trigger_job(name, "import")).created
            assert (await client.cut_over_dag(name, 1)).active_version == 1
            with pytest.raises(errors.NoPreviousVersion):
                await client.roll_back_dag(name)
            assert len(await client.datasets(dag=name)) == 2
            dataset = await client.dataset(name, limit=1)
            assert dataset.partitions.next_cursor is None
            assert (await client.invalidate_dataset(name, partition_key="1-5")).generation == 1

    asyncio.run(main())
