"""Sandboxes: places on the machines of workers in which code runs apart from everything else.

`Client.sandbox` and `AsyncClient.sandbox` create one.
"""

from ._async import AsyncExecStream, AsyncSandbox
from ._models import (
    Admission,
    ExecResult,
    FileInfo,
    Output,
    SandboxInfo,
    SandboxState,
    SandboxStats,
    Snapshot,
    Template,
    WorkerInfo,
)
from ._sync import ExecStream, Sandbox

__all__ = [
    "Admission",
    "AsyncExecStream",
    "AsyncSandbox",
    "ExecResult",
    "ExecStream",
    "FileInfo",
    "Output",
    "Sandbox",
    "SandboxInfo",
    "SandboxState",
    "SandboxStats",
    "Snapshot",
    "Template",
    "WorkerInfo",
]
