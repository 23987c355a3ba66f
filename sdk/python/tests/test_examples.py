"""The examples run, and the guide shows them as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from harness import PATIENCE, SECRET, ControlPlane, ServerProcess, envelope

from tenure import Client

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "python"
Spawn = Callable[..., "subprocess.Popen[str]"]
BLOCK = re.compile(r"(?:<!-- from (\S+) -->\n)?```python\n(.*?)```", re.S)


def _run(name: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=PATIENCE,
        check=False,
    )


def test_the_guide_shows_the_examples_as_they_are() -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "sdk" / "python.md").read_text())
    assert len(blocks) >= 8
    for source, block in blocks:
        assert source, f"no example stands behind:\n{block}"
        assert block in (ROOT / source).read_text(), f"{source} does not contain:\n{block}"


@pytest.fixture
def pulling(processes: Spawn, own_server: ServerProcess, tmp_path: Path) -> ServerProcess:
    """A server, and the worker of the examples."""
    token = tmp_path / "token"
    token.write_text(own_server.worker_token)
    env = {"TENURE_SERVER": own_server.url, "TENURE_WORKER_TOKEN_FILE": str(token), "EXAMPLE_BUCKET": "s3://b"}
    processes(sys.executable, str(EXAMPLES / "pull_worker.py"), env=env)
    return own_server


def test_tasks_are_submitted_and_done(pulling: ServerProcess) -> None:
    one = _run("submit.py", TENURE_SERVER=pulling.url)
    assert one.returncode == 0, one.stderr
    assert one.stdout.splitlines()[-1] == "{'rows': 10000, 'begun_at': 0}"
    assert "Succeeded" in one.stdout
    many = _run("submit_async.py", TENURE_SERVER=pulling.url)
    assert many.stdout == "100000 rows\n", many.stderr


def test_a_run_is_submitted_and_done(pulling: ServerProcess) -> None:
    run = _run("run.py", TENURE_SERVER=pulling.url)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "extract Succeeded\nload Succeeded\n"
    with Client(pulling.url) as client:
        loaded = next(task for task in client.iter_tasks() if task.operator == "load")
        assert loaded.result == f"s3://b/{loaded.task_id}/1/part-0"


def test_a_pushed_task_is_done(plane: ControlPlane, processes: Spawn) -> None:
    env = {"TENURE_SERVER": plane.url, "DISPATCH_SECRET": SECRET, "PORT": "0"}
    process = processes(sys.executable, str(EXAMPLES / "push_worker.py"), env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    headers = {"X-Tenure-Dispatch-Secret": SECRET}
    sent = envelope(plane, "extract", {"day": "2025-01-15"}, tenantId="default", workspaceId="default")
    assert httpx.post(url, json=sent, headers=headers, timeout=PATIENCE, trust_env=False).status_code == 202
    assert plane.wait_for("completed")[0].body["output"] == {"rows": 10000, "begun_at": 0}


def test_guarded_writes_refuse_a_stale_holder() -> None:
    ran = _run("guarded_writes.py")
    assert ran.returncode == 0, ran.stderr
    assert "fence 1 no longer counts" in ran.stdout
    assert ran.stdout.endswith("[(20,)]\n")


def test_handlers_are_tested_without_a_server() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "test_operators.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=EXAMPLES,
    )
    assert ran.returncode == 0, ran.stdout
