"""Sandboxes of a real server with a real worker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import PATIENCE, ServerProcess, binary, wait_until

from tenure import AsyncClient, Client, CommandFailed, NewTask, Runtime, SandboxRuntime, errors

TOKEN = "0123456789abcdef0123456789abcdef"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "python"
CONFIG = f"""
auth:
  worker_token: {TOKEN}
worker:
  capacity:
    memory_mb: 65536
    vcpus: 64
providers:
  default: process
  process:
    enabled: true
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server and one worker with the provider `process`."""
    folder = tmp_path_factory.mktemp("fleet")
    server = ServerProcess(binary(), folder / "server", CONFIG)
    server.start()
    (folder / "worker.yaml").write_text(CONFIG)
    args = [str(binary()), "worker", "--id", "w-1", "--listen", "127.0.0.1:0", "--server", server.url]
    args += ["--worker-token", TOKEN, "--config", str(folder / "worker.yaml"), "--data", str(folder / "worker")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    with (folder / "log").open("w") as log:
        worker = subprocess.Popen([*args, "--heartbeat-interval", "200ms"], stdout=log, stderr=log, env=env)
    try:
        with Client(server.url) as client:
            wait_until(lambda: [one for one in client.workers() if one.status == "online"], "a worker")
        yield server
    finally:
        worker.terminate()
        worker.wait(PATIENCE)
        server.stop()


@pytest.fixture
def client(fleet: ServerProcess) -> Iterator[Client]:
    with Client(fleet.url) as client:
        yield client


def test_a_sandbox_runs_commands_and_is_gone_after_with(client: Client) -> None:
    with client.sandbox("host", ttl="10m", env={"GREETING": "hello"}, metadata={"a": "b"}) as sb:
        assert sb.info.metadata == {"a": "b"}
        assert sb.id in [one.id for one in client.list_sandboxes()]
        result = sb.run("echo $GREETING; echo err >&2; exit 7")
        assert (result.exit_code, result.stdout, result.stderr) == (7, "hello\n", "err\n")
        assert sb.run(["printf", "%s", "a $b"]).stdout == "a $b"
        assert sb.run(r"printf '\377'").stdout_bytes == b"\xff"
        with pytest.raises(CommandFailed):
            sb.run("false", check=True)
        with pytest.raises(errors.ExecTimeout):
            sb.run("sleep 60", timeout=0.3)
        before = sb.info.expires_at or ""
        assert (sb.extend(7200).expires_at or "") > before
        sb.stats()
        sb.logs(10)
    with pytest.raises(errors.NotFound):
        client.get_sandbox(sb.id)


def test_output_comes_as_it_is_written_and_closing_ends_the_command(client: Client) -> None:
    with client.sandbox("host", ttl=600) as sb:
        with sb.stream("echo one; sleep 0.2; echo two >&2; exit 5") as stream:
            output = [(one.stream, one.text) for one in stream]
        assert (output, stream.exit_code) == ([("stdout", "one\n"), ("stderr", "two\n")], 5)
        with sb.stream("echo $$ > pid; echo begun; exec sleep 600") as stream:
            assert next(iter(stream)).text == "begun\n"
        wait_until(lambda: not sb.run("kill -0 $(cat pid) 2>/dev/null").ok, "the command is gone")


def test_files(client: Client, tmp_path: Path) -> None:
    content = bytes(range(256)) * 2000
    local = tmp_path / "local"
    local.write_bytes(content)
    with client.sandbox("host", ttl=600) as sb:
        sb.upload(local, "/workspace/deep/data.bin")
        assert sb.read_file("/workspace/deep/data.bin") == content
        assert sb.stat_file("/workspace/deep/data.bin").size == len(content)
        sb.write_file("/workspace/run.sh", "#!/bin/sh\necho ran\n", mode=0o755)
        assert sb.run(["./run.sh"]).stdout == "ran\n"
        assert [one.name for one in sb.list_files("/workspace")] == ["deep", "run.sh"]
        assert sb.glob_files("/workspace/**/*.bin") == ["/workspace/deep/data.bin"]
        sb.move_file("/workspace/deep/data.bin", "/workspace/moved")
        sb.download("/workspace/moved", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == content
        sb.delete_file("/workspace/moved")
        with pytest.raises(errors.NotFound):
            sb.read_file("/workspace/moved")


def test_snapshots(client: Client) -> None:
    if "namespace" not in client.workers()[0].providers:
        pytest.skip("the provider namespace does not work here, and no other one has snapshots")
    with client.sandbox("host", provider="namespace", ttl=600) as sb:
        sb.write_file("/workspace/a", "first")
        snapshot = sb.snapshot("before")
        sb.write_file("/workspace/a", "second")
        sb.restore(snapshot.id)
        assert sb.read_text("/workspace/a") == "first"
    with client.sandbox("host", provider="namespace", snapshot=snapshot.id, ttl=600) as copy:
        assert copy.read_text("/workspace/a") == "first"
    assert snapshot.id in [one.id for one in client.snapshots()]
    client.delete_snapshot(snapshot.id)


def test_the_asynchronous_twin(fleet: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncClient(fleet.url) as client:
            async with client.sandbox("host", ttl=600) as sb:
                await sb.write_file("/workspace/a", "text")
                assert await sb.read_text("/workspace/a") == "text"
                async with await sb.stream("cat a; exit 3") as stream:
                    assert [one.text async for one in stream] == ["text"]
                assert stream.exit_code == 3
            with pytest.raises(errors.NotFound):
                await client.get_sandbox(sb.id)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("sandbox.py", "42\n['1', '2', '3']\nline 1\nline 2\nline 3\nexit code 3\n"),
        ("sandbox_async.py", "1 4 9 16\n"),
    ],
)
def test_the_examples_run(fleet: ServerProcess, name: str, printed: str) -> None:
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    env = {**os.environ, "TENURE_SERVER": fleet.url}
    ran = run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, env=env, timeout=PATIENCE)
    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr


def test_a_task_runs_in_a_sandbox_of_its_own(client: Client) -> None:
    client.set_queue("boxed", {"push": {"url": "sandbox:"}})
    sandbox = SandboxRuntime(command='echo "$MODE" >&2; cat', image="host", env={"MODE": "fast"}, timeout="30s")
    task = NewTask(queue="boxed", operator="op", payload={"day": 7}, runtime=Runtime(sandbox))
    done = client.wait(client.submit(task).task_id, PATIENCE)
    assert (done.state, done.result) == ("Succeeded", {"day": 7})
    words = SandboxRuntime(command=["sh", "-c", 'echo "$0" >&2; exit 65', "a b"])
    task = NewTask(queue="boxed", operator="op", runtime=Runtime(words))
    failed = client.wait(client.submit(task).task_id, PATIENCE)
    assert failed.state == "Failed"
    assert failed.error is not None
    assert failed.error.message == "exit code 65: a b"
    # Only a queue that runs sandboxes takes it, and such a queue takes nothing else.
    client.set_queue("plain", {})
    with pytest.raises(errors.WrongRuntime):
        client.submit(NewTask(queue="plain", operator="op", runtime=Runtime(sandbox)))
    with pytest.raises(errors.WrongRuntime):
        client.submit(NewTask(queue="boxed", operator="op"))


async def _boxed(url: str) -> object:
    async with AsyncClient(url) as client:
        task = NewTask(queue="boxed", operator="op", runtime=Runtime(SandboxRuntime(command="echo 3")))
        return (await client.wait((await client.submit(task)).task_id, PATIENCE)).result


def test_a_task_runs_in_a_sandbox_without_blocking(fleet: ServerProcess, client: Client) -> None:
    client.set_queue("boxed", {"push": {"url": "sandbox:"}})
    assert asyncio.run(_boxed(fleet.url)) == 3
