"""Running one handler: a synchronous one on a thread of its own, an asynchronous one on the handlers' loop."""

from __future__ import annotations

import asyncio
import collections.abc
import ctypes
import functools
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

from .._loop import LoopThread
from ..errors import Category, LeaseLost, SetupError, TaskError
from ._lease import Lease
from ._outcome import Ended, Failure, encode_result, failure_of
from .context import HandlerContext, TaskContext

log = logging.getLogger("tenure.worker")
#: What a handler gave whose thread ended in the middle of telling it.
_DIED = Failure(Category.INFRASTRUCTURE, "the thread of the handler ended", True)
Handler = Callable[[TaskContext], Any | Awaitable[Any]]
#: A handler of any contract: it gets what its lease was begun with.
AnyHandler = Callable[[Any], Any | Awaitable[Any]]


def check_handler(name: str, handler: AnyHandler) -> None:
    """Refuses what can never give a result."""
    if not callable(handler):
        raise SetupError(f"the handler of `{name}` cannot be called")
    plain = _plain(handler)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise SetupError(f"the handler of `{name}` is a generator: a handler returns its result")


def _plain(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler) and hasattr(type(handler), "__call__"):  # noqa: B004 (its kind matters)
        return type(handler).__call__
    return handler


def is_async(handler: AnyHandler) -> bool:
    return inspect.iscoroutinefunction(_plain(handler))


class _Interrupt:
    """Raises `LeaseLost` in a thread, between two steps of its Python code, while that runs the handler.

    A call into another library ends first; what must end sooner is ended by `TaskContext.on_lease_lost`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._fired = False

    def arm(self) -> None:
        with self._lock:
            if self._fired:
                raise LeaseLost
            self._thread = threading.get_ident()

    def fire(self) -> None:
        with self._lock:
            if self._fired:
                return
            self._fired = True
            if self._thread is not None:
                _raise_in(self._thread, LeaseLost)

    def disarm(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None and self._fired:
                # Sent, and not yet raised: it must not hit what follows.
                _raise_in(thread, None)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    api = getattr(ctypes, "pythonapi", None)
    if api is None:
        # Another interpreter than CPython: there the handler has to look for itself.
        return
    target = ctypes.py_object(error) if error is not None else None
    api.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)


def start(
    lease: Lease,
    context: HandlerContext,
    handler: AnyHandler,
    handlers: Callable[[], LoopThread],
    interrupt: bool,
    done: Callable[[Ended], None],
) -> None:
    """Begins a handler. `done` is called once, on any thread, with what it gave."""
    try:
        if is_async(handler):
            _start_task(lease, context, handler, handlers(), done)
        else:
            _start_thread(lease, context, handler, interrupt, done)
    except Exception as error:
        # There is no thread to be had, say.
        done(_not_begun(error))


def _not_begun(error: BaseException) -> Ended:
    return Ended(None, failure_of(OSError(f"the handler could not be begun: {error}")))


def _start_thread(
    lease: Lease, context: HandlerContext, handler: AnyHandler, interrupt: bool, done: Callable[[Ended], None]
) -> None:
    stopper = _Interrupt()
    if interrupt:
        lease.interrupt = stopper.fire
        if lease.phase.value in ("lost", "abandoned"):
            stopper.fire()
    target = functools.partial(_thread_main, context, handler, stopper, done)
    threading.Thread(target=target, name=f"tenure-task-{context.task_id}", daemon=True).start()


def _thread_main(
    context: HandlerContext, handler: AnyHandler, stopper: _Interrupt, done: Callable[[Ended], None]
) -> None:
    # Whatever happens below, somebody is told, and not of a success.
    began, output = time.thread_time(), None
    failure: Failure | None = _DIED
    try:
        try:
            stopper.arm()
            value = handler(context)
            stopper.disarm()
        except BaseException:
            # Sent once at most, so it cannot come in here a second time.
            stopper.disarm()
            raise
        output, failure = encode_result(no_awaitable(value)), None
    except BaseException as error:
        failure = failure_of(error)
    finally:
        done(Ended(output, failure, time.thread_time() - began))


def no_awaitable(value: Any) -> Any:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TaskError("the handler returned an awaitable: declare it with `async def`", retryable=False)
    return value


def _start_task(
    lease: Lease, context: HandlerContext, handler: AnyHandler, handlers: LoopThread, done: Callable[[Ended], None]
) -> None:
    def begin() -> None:
        timed = _Timed(_task_main(context, handler))
        try:
            task = handlers.loop.create_task(timed)
        except Exception as error:
            timed.close()
            done(_not_begun(error))
            return
        task.add_done_callback(lambda task: done(_ended(task, timed.seconds)))
        lease.interrupt = lambda: handlers.call(task.cancel)
        if lease.phase.value in ("lost", "abandoned"):
            task.cancel()

    if not handlers.call(begin):
        done(_not_begun(RuntimeError("the event loop of the handlers has ended")))


async def _task_main(context: HandlerContext, handler: AnyHandler) -> Ended:
    # Caught in here, also SystemExit, which asyncio would let out of the loop.
    try:
        return Ended(encode_result(await handler(context)), None)
    except BaseException as error:
        return Ended(None, failure_of(error))


def _ended(task: asyncio.Task[Ended], seconds: float) -> Ended:
    try:
        ended = task.result()
    except BaseException as error:
        # Cancelled before it began.
        return Ended(None, failure_of(error), seconds)
    return Ended(ended.output, ended.failure, seconds)


class _Timed(collections.abc.Coroutine[Any, Any, Ended]):
    """A coroutine that counts the processor time of its own steps. That of tasks it starts is not in it."""

    def __init__(self, inner: Coroutine[Any, Any, Ended]) -> None:
        self._inner = inner
        self.seconds = 0.0

    def send(self, value: Any) -> Any:
        began = time.thread_time()
        try:
            return self._inner.send(value)
        finally:
            self.seconds += time.thread_time() - began

    def throw(self, kind: Any, error: BaseException | object | None = None, trace: TracebackType | None = None) -> Any:
        began = time.thread_time()
        try:
            if error is None and trace is None:
                return self._inner.throw(kind)
            return self._inner.throw(kind, error, trace)
        finally:
            self.seconds += time.thread_time() - began

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()
