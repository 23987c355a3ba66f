"""An event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("tenure")


class LoopThread:
    """A daemon thread that runs an event loop until it is closed."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._closing:
            try:
                self.loop.run_forever()
            except BaseException:
                # SystemExit and KeyboardInterrupt of a task leave the loop. They are no reason to stop the others.
                log.exception("a task tried to end the event loop")
        try:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        except BaseException:
            log.debug("an event loop did not end cleanly", exc_info=True)
        finally:
            self.loop.close()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts a coroutine from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, function: Callable[..., object], *args: Any) -> bool:
        """Calls a function soon, from any thread. False, and nothing done, once the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def close(self, wait: float | None = 5.0) -> None:
        self._closing = True
        self.call(self.loop.stop)
        if not self.is_current():
            self._thread.join(wait)


class AsideError(Exception):
    """What was done aside ended in something that is no Exception, such as SystemExit."""


def aside(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Does something on a daemon thread of its own, so that the loop need not wait for it. RuntimeError if none starts.

    A thread that never ends does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
            future.exception()  # looked at: nobody may be waiting any longer
        else:
            future.set_result(value)

    def main() -> None:
        value: T | None = None
        error: Exception | None = None
        try:
            value = work()
        except (StopIteration, StopAsyncIteration) as stop:
            error = AsideError(repr(stop))  # these two cannot pass through a future
        except Exception as failure:
            error = failure
        except BaseException as stop:
            error = AsideError(f"{type(stop).__name__}")
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            log.debug("%s ended after its loop", name)

    threading.Thread(target=main, name=name, daemon=True).start()
    return future
