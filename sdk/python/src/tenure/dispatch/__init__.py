"""Doing tasks of DAGs: see `tenure.DispatchWorker`."""

from ._parts import Cursor, Input, OutputSlot, Partition
from .task import DispatchTask, Output
from .worker import DispatchWorker, RunningDispatchWorker

__all__ = [
    "Cursor",
    "DispatchTask",
    "DispatchWorker",
    "Input",
    "Output",
    "OutputSlot",
    "Partition",
    "RunningDispatchWorker",
]
