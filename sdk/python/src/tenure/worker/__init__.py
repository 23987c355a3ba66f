"""Doing work: see `tenure.Worker`."""

from ._lease import CancelKind, CancelReason
from ._server import Limits
from .context import TaskContext
from .worker import OUTAGE_TOLERANCE, RunningWorker, Worker

__all__ = ["OUTAGE_TOLERANCE", "CancelKind", "CancelReason", "Limits", "RunningWorker", "TaskContext", "Worker"]
