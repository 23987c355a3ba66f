"""A worker: takes tasks, runs the handlers of their operators, keeps the leases alive, reports."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import os
import re
import signal
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from types import FrameType, TracebackType
from typing import Any, TypeVar

import httpx

from .. import _text
from .._http import USER_AGENT, header_value, parse_server, tls
from .._loop import LoopThread
from ..errors import SetupError, WorkerError
from ._asgi import AsgiApp
from ._execute import AnyHandler, Handler, check_handler
from ._pull import Connection, PullSource, Tokens, token_source
from ._push import PushSettings, PushSource
from ._runtime import Runtime, Source
from ._server import Limits, Server

log = logging.getLogger("tenure.worker")

QUEUES_MAX = 64
POLL_MAX = 60.0
#: How long work goes on without a word from the control plane, unless set otherwise.
OUTAGE_TOLERANCE = 300.0
#: Whose dispatches are taken, unless set otherwise.
SCOPE_DEFAULT = "default"
SCOPE_NAME = re.compile(r"[a-z0-9_-]{1,64}")
#: How often the main thread looks for signals.
SIGNALS_EVERY = 0.2

H = TypeVar("H", bound=Handler)
R = TypeVar("R", bound="RunningWorker")


class Worker:
    """Handlers by the names of their operators, and how to get tasks for them: by pull or by push.

    Pull needs `server`, `queues` and a token: `run`. Push needs `dispatch_secret` and `callback_urls`: `serve`, or
    `asgi` for a server of yours. The same handlers serve both.

    Unless it is given a `name` a worker's id is unique to each run, also in processes that were forked after the worker
    was made. Under a name, a new process takes over from an old one, and the old one ends with `Superseded`.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        queues: Iterable[str] = (),
        token: str | Callable[[], str] | None = None,
        token_file: str | PathLike[str] | None = None,
        poll_wait: float = 5.0,
        dispatch_secret: str | Sequence[str] | None = None,
        allow_no_secret: bool = False,
        callback_urls: Iterable[str] = (),
        dispatch_path: str = "/dispatch",
        tenant: str | None = None,
        workspace: str | None = None,
        scopes: Iterable[tuple[str, str]] = (),
        allow_any_scope: bool = False,
        name: str | None = None,
        concurrency: int = 1,
        drain_timeout: float = 30.0,
        stop_grace: float = 5.0,
        outage_tolerance: float = OUTAGE_TOLERANCE,
        interrupt: bool = True,
        ca_file: str | PathLike[str] | None = None,
    ) -> None:
        """
        :param server: address of the control plane; pull only
        :param queues: taken from in this order: one of the second only when the first has none; pull only
        :param token: sent as `X-Worker-Token`; a function is asked for every request, within 5 s and on a thread of
            its own; pull only
        :param token_file: a file with the token, read for every request; pull only
        :param poll_wait: how long a claim waits at the server for work, up to 60 s; pull only
        :param dispatch_secret: what `X-Tenure-Dispatch-Secret` must say; of several any one; push only
        :param allow_no_secret: takes dispatches from anybody who can reach this worker; push only
        :param callback_urls: the addresses that a dispatch may ask to report to; push only
        :param dispatch_path: where dispatches are sent; push only
        :param tenant: dispatches for other tenants are refused; `default` unless given; push only
        :param workspace: dispatches for other workspaces are refused; `default` unless given; push only
        :param scopes: in place of `tenant` and `workspace`, several pairs of them; push only
        :param allow_any_scope: takes dispatches of every tenant and workspace; push only
        :param name: a fixed worker id; only one process at a time may use it, so none for forked processes
        :param concurrency: how many tasks run at a time
        :param drain_timeout: on shutdown, how long running tasks may go on before they are told to stop
        :param stop_grace: on shutdown, how long tasks that were told to stop may take for it
        :param outage_tolerance: how long a handler goes on after its lease ran out by the local clock because the
            server did not answer. An outage of the control plane must not abort running work. A worker that is merely
            cut off looks the same from here, and then a task may run twice at a time until the server can say so; the
            fence keeps the older one from changing anything. With 0 the handler is stopped the moment the lease is
            certain to have run out.
        :param interrupt: raise `LeaseLost` in synchronous handlers that lost their lease; without it they have to look
            at `cancelled` themselves
        :param ca_file: only servers whose certificate this file signs are trusted
        """
        self._handlers: dict[str, Handler] = {}
        self._server = None if server is None else parse_server(server)
        self._queues = [queues] if isinstance(queues, str) else list(queues)
        self._token = token_source(token, token_file)
        self._poll_wait = poll_wait
        allowed = _scopes(tenant, workspace, scopes, allow_any_scope)
        self._push = _push_settings(
            dispatch_secret, allow_no_secret, callback_urls, dispatch_path, allowed, concurrency
        )
        self._allow_no_secret = allow_no_secret
        self._identity = Identity(None if name is None else header_value(name, "worker name"))
        self._concurrency = concurrency
        self._drain_timeout = drain_timeout
        self._stop_grace = stop_grace
        self._outage_tolerance = outage_tolerance
        self._interrupt = interrupt
        self._ca_file = ca_file
        if concurrency < 1:
            raise SetupError("a worker must be allowed to run at least one task at a time")
        if not 0 <= poll_wait <= POLL_MAX:
            raise SetupError(f"a claim waits for 0 to {POLL_MAX:g} s")
        if min(drain_timeout, stop_grace, outage_tolerance) < 0:
            raise SetupError("a time-out is not below 0")

    def __repr__(self) -> str:
        return f"Worker({self.worker_id!r}, operators={sorted(self._handlers)})"

    @property
    def worker_id(self) -> str:
        """How the control plane knows the run that was begun last in this process, or the next if there was none."""
        return self._identity.current()

    def operator(self, name: str) -> Callable[[H], H]:
        """Runs tasks of the operator `name` with the decorated function: `def` or `async def`, of a `TaskContext`.

        What it returns is the result of the task, any JSON up to 1 MiB. A synchronous one has a thread to itself.
        Asynchronous ones share an event loop of the worker's.
        """

        def add(handler: H) -> H:
            self.add_operator(name, handler)
            return handler

        return add

    def add_operator(self, name: str, handler: Handler) -> None:
        """`operator` without decoration."""
        check_handler(name, handler)
        if name in self._handlers:
            raise SetupError(f"there are two handlers for `{name}`")
        self._handlers[name] = handler

    def run(self) -> None:
        """Takes tasks from the queues until SIGTERM or SIGINT; then lets tasks finish, reports, and returns.

        A second signal tells the tasks to stop at once. Raises `WorkerRefused` if the server does not want this worker,
        after tasks have finished, and `Superseded` at once.
        """
        self.start().join_with_signals()

    async def run_async(self) -> None:
        """`run` for asyncio, without signals: cancelling it lets tasks finish and reports, however often it is done.

        `start` gives a worker that can be told to hurry, with `stop(now=True)`.
        """
        await self.start().wait()

    def start(self) -> RunningWorker:
        """Begins to take tasks from the queues, in the background."""
        if self._server is None:
            raise SetupError("a worker that pulls needs the address of a server")
        if not 1 <= len(self._queues) <= QUEUES_MAX:
            raise SetupError(f"a worker takes from 1 to {QUEUES_MAX} queues, not {len(self._queues)}")
        server = self._server

        def source(parts: Parts) -> Source:
            connection = Connection(parts.http, server, parts.worker_id, Tokens(self._token))
            named = self._identity.name is not None
            return PullSource(connection, self._queues, self._poll_wait, named, self._concurrency, self._handlers)

        running = RunningWorker(self._begin(), source)
        log.info("worker %s takes tasks from %s", running.worker_id, ", ".join(self._queues))
        return running

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        tls: ssl.SSLContext | None = None,
        on_listening: Callable[[str, int], object] | None = None,
    ) -> None:
        """Takes dispatches over HTTP until SIGTERM or SIGINT; then lets tasks finish, reports, and returns.

        `tls` with `verify_mode = ssl.CERT_REQUIRED` asks the control plane for its certificate. `on_listening` is told
        where it listens: a port of 0 takes a free one. Its error ends the worker.
        """
        running = self.start_serving(host, port, tls=tls)
        if on_listening is not None:
            try:
                on_listening(*running.address)
            except BaseException:
                running.stop(now=True)
                try:
                    running.join()
                except Exception:
                    log.exception("the worker did not end cleanly")
                raise
        running.join_with_signals()

    async def serve_async(
        self, host: str = "127.0.0.1", port: int = 8080, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """`serve` for asyncio, without signals. Cancelling it does what it does to `run_async`."""
        await self.start_serving(host, port, tls=tls).wait()

    def start_serving(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> RunningWorker:
        """Begins to take dispatches over HTTP, in the background. Returns when it listens."""
        listening: concurrent.futures.Future[tuple[str, int]] = concurrent.futures.Future()

        async def serve(source: PushSource) -> Server:
            server = Server(source, limits)
            await server.start(host, port, tls)
            listening.set_result(server.addresses[0])
            return server

        source = self._push_source(serve)
        running = RunningWorker(self._begin(), source)
        both: list[concurrent.futures.Future[Any]] = [listening, running.future]
        concurrent.futures.wait(both, return_when=concurrent.futures.FIRST_COMPLETED)
        if not listening.done():
            running.join()
        running.address = listening.result()
        log.info("worker %s accepts dispatches at %s:%d", running.worker_id, *running.address)
        return running

    def asgi(self) -> AsgiApp:
        """The worker as an ASGI app, for uvicorn, hypercorn or as a part of an app of yours."""
        return AsgiApp(_AsgiHost(self))

    def _push_source(self, serve: Callable[[PushSource], Any] | None) -> Callable[[Parts], PushSource]:
        if not self._push.secrets and not self._allow_no_secret:
            raise SetupError("a worker that is pushed to needs a `dispatch_secret`")
        if not self._push.callback_urls:
            raise SetupError("a worker that is pushed to needs `callback_urls`: where it may send task tokens")
        return lambda parts: PushSource(self._push, parts.http, parts.worker_id, parts.thread, serve)

    def _begin(self) -> Parts:
        """Makes what belongs to one run in one process: nothing of it is made before, and nothing is shared."""
        return begin_run(
            self._identity,
            self._handlers,
            ca_file=self._ca_file,
            concurrency=self._concurrency,
            outage_tolerance=self._outage_tolerance,
            drain_timeout=self._drain_timeout,
            stop_grace=self._stop_grace,
            interrupt=self._interrupt,
        )


def begin_run(
    identity: Identity, handlers: Mapping[str, AnyHandler], *, ca_file: str | PathLike[str] | None, **settings: Any
) -> Parts:
    """What one run of a worker needs. Nothing of it is shared with another run or process."""
    if not handlers:
        raise SetupError("a worker needs at least one operator")
    # Redirects would carry tokens to another host, and so would a proxy of the environment.
    http = httpx.AsyncClient(
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        verify=tls(ca_file),
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
    )
    thread = LoopThread("tenure-worker")
    return Parts(identity.take(), thread, Runtime(thread, dict(handlers), **settings), http)


@dataclass(frozen=True)
class Parts:
    """What one run is made of."""

    worker_id: str
    thread: LoopThread
    runtime: Runtime
    http: httpx.AsyncClient


class Identity:
    """The worker's id: its name, or one for each run. One that was made before a fork is the parent's.

    Without a lock, since a fork may come while another thread has it.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        #: The process and the id of the last run, or of the first to come.
        self._last: tuple[int, str] | None = None
        #: Shown, and not yet taken by a run.
        self._shown: list[tuple[int, str]] = []

    def current(self) -> str:
        """The id of the last run of this process, or that of the first to come."""
        if self.name is not None:
            return self.name
        last = self._last
        if last is None or last[0] != os.getpid():
            last = self._last = (os.getpid(), _text.worker_id())
            self._shown = [last]
        return last[1]

    def take(self) -> str:
        """The id for a run that begins."""
        if self.name is not None:
            return self.name
        try:
            taken = self._shown.pop()
        except IndexError:
            taken = (0, "")
        if taken[0] != os.getpid():
            taken = (os.getpid(), _text.worker_id())
        self._last = taken
        return taken[1]


def _scopes(
    tenant: str | None, workspace: str | None, pairs: Iterable[tuple[str, str]], any_scope: bool
) -> frozenset[tuple[str, str]] | None:
    """Whose tasks are taken; None for everybody's."""
    several = frozenset((str(pair[0]), str(pair[1])) for pair in pairs)
    one = tenant is not None or workspace is not None
    if (one + bool(several) + any_scope) > 1:
        raise SetupError("a worker has a tenant and a workspace, or several scopes, or takes any: one of these")
    if any_scope:
        return None
    found = several or frozenset([(tenant or SCOPE_DEFAULT, workspace or SCOPE_DEFAULT)])
    for name in itertools.chain.from_iterable(found):
        if not SCOPE_NAME.fullmatch(name):
            raise SetupError(f"`{name}` is no name of a tenant or a workspace: 1 to 64 of a-z, 0-9, _ and -")
    return found


def _push_settings(
    secret: str | Sequence[str] | None,
    allow_no_secret: bool,
    callback_urls: Iterable[str],
    path: str,
    scopes: frozenset[tuple[str, str]] | None,
    concurrency: int,
) -> PushSettings:
    secrets = (secret,) if isinstance(secret, str) else tuple(secret or ())
    if secrets and allow_no_secret:
        raise SetupError("a worker has a dispatch secret, or is allowed to have none")
    secrets = tuple(header_value(one, "dispatch secret") for one in secrets)
    if not path.startswith("/"):
        raise SetupError("the path of dispatches begins with a slash")
    urls = [callback_urls] if isinstance(callback_urls, str) else list(callback_urls)
    known = frozenset(str(parse_server(url)) for url in urls)
    return PushSettings(path, secrets, known, scopes, concurrency)


#: What SIGTERM and SIGINT did before a worker of this process took them; empty if none has.
_before: dict[int, Any] = {}


def _give_signals_back() -> None:
    for number, handler in _before.items():
        # What was not set by Python cannot be set again.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _before.clear()


# A process that a handler forks is no worker: what ends it is not to be taken for what ends the worker.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_signals_back)


class RunningWorker:
    """A worker under way. As a context manager it is stopped and awaited at the end of the block."""

    def __init__(self, parts: Parts, make_source: Callable[[Parts], Source]) -> None:
        self._thread, self._runtime, self._http = parts.thread, parts.runtime, parts.http
        self._process = os.getpid()
        #: How the control plane knows it.
        self.worker_id = parts.worker_id
        #: Where it takes dispatches, if it does.
        self.address: tuple[str, int] = ("", 0)
        try:
            self.source = make_source(parts)
        except BaseException:
            self._thread.close()
            raise
        self.future = self._thread.submit(self._main())

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process. After a fork it goes on in the parent only."""
        return self._process == os.getpid()

    async def _main(self) -> None:
        async with self._http:
            await self._runtime.main(self.source)

    def stop(self, now: bool = False) -> None:
        """Takes no more work; `join` returns when tasks have finished and were reported. Any thread may call it."""
        if self.is_here:
            self._runtime.stop(now)

    def join(self, timeout: float | None = None) -> None:
        """Waits for the end of the worker, and raises its error. TimeoutError if it takes longer."""
        if not self.is_here:
            raise WorkerError("this worker runs in another process, from which this one was forked")
        try:
            self.future.result(timeout)
        except concurrent.futures.TimeoutError:
            if not self.future.done():
                raise TimeoutError("the worker still runs") from None
            raise
        finally:
            if self.future.done():
                self._thread.close()

    def join_with_signals(self) -> None:
        """`join`, with SIGTERM and SIGINT as `stop`. Outside of the main thread signals are left alone.

        Processes that are forked meanwhile have the signals as they were before.
        """
        if threading.current_thread() is not threading.main_thread():
            self.join()
            return
        signals = 0

        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal signals
            if not self.is_here:
                # Forked a moment ago.
                _give_signals_back()
                os.kill(os.getpid(), number)
                return
            signals += 1
            self.stop(now=signals > 1)

        # Kept before they are taken: a handler may fork at any moment.
        _before.update({number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)})
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, on_signal)
            # The system may give a signal to another thread, and that does not wake this one, where handlers run.
            while not self.future.done():
                concurrent.futures.wait([self.future], timeout=SIGNALS_EVERY)
            self.join()
        finally:
            _give_signals_back()

    async def wait(self) -> None:
        """`join` for asyncio. Cancelled, it stops the worker first, and waits for the end all the same.

        Cancelled again it goes on waiting, and nobody is hurried: some libraries cancel what they wait for over and
        over until it ends.
        """
        ended = asyncio.wrap_future(self.future)
        cancelled: asyncio.CancelledError | None = None
        try:
            while not ended.done():
                try:
                    await asyncio.wait([ended])
                except asyncio.CancelledError as error:
                    if cancelled is None:
                        self.stop()
                    cancelled = error
            ended.result()
            if cancelled is not None:
                raise cancelled
        finally:
            if self.future.done():
                self._thread.close()

    def __enter__(self: R) -> R:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(now=error is not None)
        self.join()


class _AsgiHost:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._running: RunningWorker | None = None
        #: Whether the worker was told to end.
        self._ending = False

    def _begin(self) -> RunningWorker:
        # First what a wrong set-up refuses: nothing has begun by then.
        make = self._worker._push_source(None)
        self._running = RunningWorker(self._worker._begin(), make)
        self._ending = False
        return self._running

    async def start(self) -> None:
        running = self._running
        if running is not None and running.is_here:
            if self._ending and not running.future.done():
                await asyncio.wait([asyncio.wrap_future(running.future)])
            if self._running is running and running.future.done():
                self._begin()
        await self.begin()
        running = self._running
        if running is not None and running.future.done():
            await running.wait()
            raise WorkerError("the worker ended before it was ready")

    async def begin(self) -> PushSource:
        running = self._running
        if running is None or not running.is_here:
            running = self._begin()
        source = running.source
        if not isinstance(source, PushSource):  # pragma: no cover (it is what was made)
            raise TypeError
        # Each wait leaves something with the future of the end, which lasts as long as the worker.
        if not source.ready.done() and not running.future.done():
            both = [asyncio.wrap_future(source.ready), asyncio.wrap_future(running.future)]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return source

    async def end(self) -> None:
        running = self._running
        if running is not None and running.is_here:
            self._ending = True
            running.stop()
            await running.wait()
