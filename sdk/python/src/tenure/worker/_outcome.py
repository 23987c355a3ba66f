"""What became of a task, and whose fault it is if it failed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import traceback
from dataclasses import dataclass, replace
from typing import Any

import httpx

from .. import _text
from ..errors import Category, ConfigurationError, TaskCancelled, TaskError
from ._beat import ABSENT
from ._lease import CancelKind, CancelReason
from .context import MESSAGE_BYTES

RESULT_BYTES = 1 << 20
STACK_BYTES = 64 << 10
CODE_BYTES = 256


@dataclass(frozen=True)
class Failure:
    """How a task failed."""

    category: Category
    message: str
    retryable: bool
    #: A word of the handler's own.
    code: str | None = None
    stack: str | None = None
    #: The worker has to stop and gives the task back: the attempt does not count.
    handed_back: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", _text.cut(self.message, MESSAGE_BYTES))
        if self.stack is not None:
            object.__setattr__(self, "stack", _text.cut_front(self.stack, STACK_BYTES))
        if self.code is not None:
            object.__setattr__(self, "code", _text.cut(self.code, CODE_BYTES))


@dataclass(frozen=True)
class Metrics:
    cpu_ms: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Ended:
    """What a handler gave. There is no third way: without an output it has failed."""

    #: The result as JSON.
    output: bytes | None
    failure: Failure | None
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What is reported."""

    #: SUCCEEDED, FAILED or CANCELLED.
    word: str
    output: bytes | None = None
    failure: Failure | None = None
    metrics: Metrics | None = None
    phase: str | None = None
    checkpoint: Any = ABSENT


def peak_memory() -> int | None:
    """The peak resident size of this process so far, in bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def encode_result(value: Any) -> bytes:
    """The result of a handler as JSON, or the error that it is none."""
    try:
        data = _text.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"the result is no JSON: {error}", retryable=False, code="RESULT_NO_JSON") from None
    if len(data) > RESULT_BYTES:
        message = f"the result has {len(data)} bytes, the limit is {RESULT_BYTES}"
        raise TaskError(message, retryable=False, code="RESULT_TOO_LARGE")
    return data


def failure_of(error: BaseException) -> Failure:
    """Puts what a handler raised into a category. Whatever ends a handler but a return is a failure.

    Raises nothing, however strange the error.
    """
    try:
        return _failure_of(error)
    except BaseException as fault:
        kinds = f"{type(error).__name__} (telling it raised {type(fault).__name__})"
        return Failure(Category.USER_CODE, kinds, Category.USER_CODE.is_retryable)


def _failure_of(error: BaseException) -> Failure:
    stack = _stack(error)
    if isinstance(error, TaskError):
        # A subclass may have left out the constructor of its base.
        category = Category(error.category)
        retryable, code = getattr(error, "retryable", None), getattr(error, "code", None)
        if not isinstance(retryable, bool):
            retryable = category.is_retryable
        return Failure(category, str(error) or category.value, retryable, None if code is None else str(code), stack)
    category = _category(error)
    return Failure(category, _describe(error), category.is_retryable, None, stack)


def _category(error: BaseException) -> Category:
    if isinstance(error, TaskCancelled):
        # Raised by the handler itself, since nobody asked: it gave up on its own account.
        return Category.CANCELLED
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)):
        return Category.TIMEOUT
    if isinstance(error, (MemoryError, OSError, httpx.TransportError)):
        return Category.INFRASTRUCTURE
    if isinstance(error, KeyError) and _is_of_environ(error):
        return Category.CONFIGURATION
    return Category.USER_CODE


def _is_of_environ(error: KeyError) -> bool:
    """Whether the key was looked for in `os.environ`: the last frame is then that of its lookup."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and isinstance(trace.tb_frame.f_locals.get("self"), type(os.environ))


def _describe(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, SystemExit):
        return f"the handler tried to exit the process (SystemExit: {error.code!r})"
    if isinstance(error, KeyError) and _is_of_environ(error):
        return f"the environment variable {error.args[0]!r} is missing"
    try:
        text = str(error)
    except Exception:
        text = "it cannot be shown"
    return f"{name}: {text}" if text else name


def _stack(error: BaseException) -> str | None:
    try:
        # The first frame is this package's own.
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:
        return None


def unknown_operator(name: str) -> Failure:
    """Another worker may know the operator, as during a roll-out: so it is retried."""
    error = ConfigurationError(f"this worker has no operator `{name}`")
    return Failure(error.category, str(error), True, "UNKNOWN_OPERATOR")


def unreadable(why: str) -> Failure:
    """What was submitted is beyond this worker, and would be so the next time."""
    return Failure(Category.CONFIGURATION, f"the task cannot be read: {why}", False, "TASK_UNREADABLE")


def unsendable(why: BaseException) -> Failure:
    """In place of an outcome that could not be put into words."""
    message = f"the outcome could not be told ({type(why).__name__})"
    return Failure(Category.USER_CODE, message, False, "OUTCOME_UNSENDABLE")


def shut_down(cause: Failure | None = None) -> Failure:
    detail = "" if cause is None else f": {cause.message}"
    message = f"the worker was shut down{detail}"
    stack = cause.stack if cause else None
    return Failure(Category.INFRASTRUCTURE, message, True, "WORKER_SHUTDOWN", stack, handed_back=True)


def judge(ended: Ended, reason: CancelReason | None, keeps_result: bool) -> Outcome:
    """What is reported of what a handler gave.

    After it was told to stop, a failure is the answer to that, and so is a return unless the handler keeps its result.
    """
    failure = ended.failure
    if failure is None:
        if reason is None or keeps_result:
            return Outcome("SUCCEEDED", output=ended.output)
        failure = Failure(Category.CANCELLED, "the handler returned early", False)
    if reason is not None and reason.kind is CancelKind.REQUESTED:
        message = f"stopped after cancel ({reason.message}): {failure.message}"
        return Outcome("CANCELLED", failure=Failure(Category.CANCELLED, message, False, stack=failure.stack))
    if reason is not None and reason.kind is CancelKind.SHUTDOWN:
        return Outcome("FAILED", failure=shut_down(failure))
    if failure.category is Category.CANCELLED and not failure.retryable:
        return Outcome("CANCELLED", failure=failure)
    return Outcome("FAILED", failure=failure)


def refused_output(outcome: Outcome, why: str) -> Outcome:
    """In place of a success whose output the server does not take: the task must not run for ever."""
    message = f"the result was refused: {why}"
    return replace(outcome, word="FAILED", output=None, failure=Failure(Category.USER_CODE, message, False))
