"""Parts that need no server."""

from __future__ import annotations

import doctest
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest

import tenure
from tenure import _sse, _text, errors, models, testing
from tenure._http import Backoff, join, parse_server, retry_after
from tenure.testing import TestLease
from tenure.worker._beat import ABSENT, Beat, News
from tenure.worker._envelope import renewed_until
from tenure.worker._execute import _Interrupt
from tenure.worker._lease import CancelKind, CancelReason
from tenure.worker._outcome import Ended, judge


def test_ids_have_three_spellings() -> None:
    uuid = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9"
    for text in ["task_01HGW5N7XHJM4GX29KZRXQP6N9", "01hgw5n7xhjm4gx29kzrxqp6n9", uuid, uuid.upper()]:
        assert _text.canonical_id(text) == uuid
    wrong = ["", "task_", "81HGW5N7XHJM4GX29KZRXQP6N9", "01HGW5N7XHJM4GX29KZRXQP6NI", "run_01HGW5N7XHJM4GX29KZRXQP6N9"]
    for text in wrong:
        with pytest.raises(ValueError, match="is no id"):
            _text.parse_id(text)
        assert _text.canonical_id(text) == text


def test_names_are_ordered_or_unique() -> None:
    first = _text.ulid()
    while int(time.time() * 1000) == _text.parse_id(first) >> 80:
        pass
    assert first < _text.ulid()
    assert _text.worker_id() != _text.worker_id()
    assert len(_text.claim_id()) == 30


def test_times_are_read_with_any_offset_and_any_digits() -> None:
    at = datetime(2025, 1, 15, 10, 0, 0, 123000, timezone.utc)
    for text in ["2025-01-15T10:00:00.123Z", "2025-01-15T11:00:00.123000+01:00", "2025-01-15T10:00:00.123000456z"]:
        assert _text.parse_time(text) == at
    assert _text.time_text(at) == "2025-01-15T10:00:00.123Z"
    assert _text.time_text(at.replace(microsecond=0).astimezone(timezone(timedelta(hours=2)))) == "2025-01-15T10:00:00Z"
    with pytest.raises(ValueError, match="offset"):
        _text.parse_time("2025-01-15T10:00:00")


def test_texts_are_cut_at_a_character() -> None:
    assert _text.cut("äää", 3) == "ä"
    assert _text.cut_front("äää", 3) == "ä"
    assert _text.cut("\ud800x", 10) == "?x"


def test_only_json_is_json() -> None:
    for text in ["NaN", "Infinity", "[" * 100_000]:
        with pytest.raises(ValueError, match=r"no JSON|nested"):
            _text.decode(text)
    with pytest.raises(ValueError, match="Out of range"):
        _text.encode(float("inf"))


def test_a_renewed_token_lasts_by_the_clock_of_the_server() -> None:
    answer = {"serverTime": "2001-01-01T00:00:00Z", "tokenExpiresAt": "2001-01-01T01:00:00Z"}
    assert renewed_until(answer, 100.0) == 3700.0
    assert renewed_until({}, 100.0) is None


def test_ids_cannot_leave_their_segment() -> None:
    server = parse_server("http://host:1/base/")
    assert str(join(server, ("api", "a/../b?c#d"))) == "http://host:1/base/api/a%2F..%2Fb%3Fc%23d"
    assert str(join(server, ("api", ".."))) == "http://host:1/base/api/%2E%2E"
    assert str(join(server, ("api",), {"tag": "a b&c"})).endswith("/base/api?tag=a+b%26c")


def test_addresses_are_compared_as_what_they_mean() -> None:
    same = {str(parse_server(text)) for text in ["http://Host", "http://host/", "http://host:80", "http://host/?x#y"]}
    assert same == {"http://host/"}


def test_waits_double_up_to_the_limit_and_honour_the_server() -> None:
    backoff = Backoff(0.1, 0.4)
    for full in [0.1, 0.2, 0.4, 0.4]:
        assert full / 2 <= backoff.next() <= full
    assert backoff.next(9.0) == 0.4
    assert retry_after({"retry-after": "2"}) == 2
    assert retry_after({"retry-after": "Wed, 15 Jan 2025 10:00:00 GMT"}) is None


def test_events_are_found_wherever_the_pieces_end() -> None:
    feed = b': hello\n\nid: 7\nevent: task\ndata: {"a":\ndata: 1}\n\nid:8\r\ndata:x\r\n\r\ndata: cut off\n'
    for size in range(1, len(feed)):
        parser = _sse.Parser()
        events = [event for at in range(0, len(feed), size) for event in parser.push(feed[at : at + size])]
        assert events == [_sse.Event("7", "task", '{"a":\n1}'), _sse.Event("8", "", "x")], size
    with pytest.raises(_sse.TooLong):
        _sse.Parser().push(b"x" * (_sse.PENDING_MAX + 1))


def test_each_word_of_the_server_has_a_class() -> None:
    mismatch = errors.from_answer(
        "POST /x", 409, {"error": "attempt_mismatch", "message": "m", "expectedAttempt": 2, "receivedAttempt": 1}
    )
    assert isinstance(mismatch, errors.AttemptMismatch)
    assert (mismatch.expected_attempt, mismatch.received_attempt) == (2, 1)
    conflict = errors.from_answer("POST /x", 409, {"error": "run_key_conflict", "existing_run_id": "run_1"})
    assert isinstance(conflict, errors.RunKeyConflict)
    assert conflict.existing_run_id == "run_1"
    unknown = errors.from_answer("POST /x", 409, {"error": "brand_new", "message": "m"})
    assert (type(unknown), unknown.error) == (errors.ConflictError, "brand_new")
    for status, kind in [(400, errors.RequestError), (401, errors.Unauthorized), (410, errors.TaskExpired)]:
        assert type(errors.from_answer("x", status, None)) is kind
    assert errors.from_answer("x", 503, "<html>").is_temporary
    assert set(errors.__all__) <= set(dir(errors))


def test_what_is_sent_has_no_null_but_in_payloads() -> None:
    run = tenure.NewRun(
        run_key="daily",
        tasks=[
            tenure.RunTask(key="extract", queue="etl", operator="extract", payload={"day": None}, timeout_ms=600000),
            tenure.RunTask(
                key="load",
                queue="etl",
                operator="load",
                payload={"rows": tenure.from_output("extract", "/rows"), "all": tenure.from_output("extract")},
                depends_on=["extract"],
                max_attempts=5,
                retry=tenure.Retry(initial_backoff_ms=1000),
                resources=tenure.Resources(memory_bytes=1),
            ),
        ],
        deadline=datetime(2025, 1, 15, 18, tzinfo=timezone.utc),
    )
    assert models.to_wire(run) == {
        "run_key": "daily",
        "deadline": "2025-01-15T18:00:00Z",
        "tasks": [
            {"key": "extract", "queue": "etl", "operator": "extract", "payload": {"day": None}, "timeout_ms": 600000},
            {
                "key": "load",
                "queue": "etl",
                "operator": "load",
                "payload": {"rows": {"$from": "extract", "path": "/rows"}, "all": {"$from": "extract"}},
                "depends_on": ["extract"],
                "max_attempts": 5,
                "retry": {"initial_backoff_ms": 1000},
                "resources": {"memory_bytes": 1},
            },
        ],
    }


def test_answers_keep_what_has_no_name_and_say_what_is_missing() -> None:
    data = {"run_id": "run_1", "state": "Running", "tasks": [{"key": "a", "task_id": "t", "state": "Ready"}], "new": 1}
    run = tenure.Run.read(data)
    assert run.task("a").state is models.TaskState.READY
    newer = tenure.Run.read({"run_id": "run_1", "state": "Paused"})
    assert (newer.state, newer.state.name, newer.is_final, str(newer.state)) == ("Paused", "UNKNOWN", False, "Paused")
    with pytest.raises(errors.DecodeError):
        tenure.Run.read({"run_id": "run_1", "state": 7})
    assert run.raw["new"] == 1
    assert not run.is_final
    with pytest.raises(KeyError):
        run.task("b")
    with pytest.raises(errors.DecodeError, match="Submitted lacks state, created"):
        models.Submitted.read({"task_id": "t"})
    with pytest.raises(errors.DecodeError):
        tenure.Run.read([])
    with pytest.raises(errors.DecodeError):
        models.Page.reader(tenure.Run.read)({"items": {}})


def test_an_attempt_may_have_a_category_and_no_worker_yet() -> None:
    data = {"attempt": 1, "attempt_id": "a", "fence": 1, "state": "Running", "granted_at": "2025-01-15T10:00:00Z"}
    pushed = models.Attempt.read(data)
    assert (pushed.worker_id, pushed.category) == (None, None)
    failed = models.Attempt.read({**data, "worker_id": "w", "category": "DATA_QUALITY"})
    assert (failed.worker_id, failed.category) == ("w", "DATA_QUALITY")


def _beat(waited: float = 0.0) -> Beat:
    """A lease of 60 s with a heartbeat every 20 s, claimed at 0 and answered `waited` later."""
    return Beat(60, 20, 0, 0, waited)


def test_time_counts_from_when_the_claim_was_sent() -> None:
    beat = _beat(5)
    assert (beat.is_confirmed, beat.next_at, beat.deadline) == (True, 20, 60)
    assert not beat.is_expired(59.9)
    assert beat.is_expired(60)


def test_an_answer_renews_from_when_its_request_was_sent() -> None:
    beat = _beat(1)
    beat.sent(20)
    beat.answered(20)
    assert (beat.next_at, beat.deadline) == (40, 80)


def test_a_claim_answered_late_is_confirmed_first() -> None:
    beat = _beat(100)
    assert (beat.is_confirmed, beat.next_at) == (False, 100)
    beat.sent(100)
    beat.answered(100)
    assert beat.is_confirmed


def test_failures_are_tried_again_soon_and_before_the_end() -> None:
    beat, now, tries = _beat(1), 20.0, 0
    while not beat.is_expired(now):
        tries += 1
        beat.sent(now)
        beat.failed(now, 3600)
        assert beat.next_at > now
        now = min(beat.next_at, beat.deadline)
    assert 4 <= tries < 20
    assert now == 60


def test_news_hasten_the_heartbeat_and_survive_its_failure() -> None:
    beat = _beat()
    assert beat.tell(News((10, "old"), {"step": 1}))
    assert beat.next_at == 0.5
    assert not beat.tell(News((11, "old")))
    beat.sent(1)
    beat.tell(News((20, "new")))
    beat.failed(1, None)
    assert beat.untold == News((20, "new"), {"step": 1})
    assert beat.sent(2) == News((20, "new"), {"step": 1})
    beat.answered(2)
    assert not beat.has_untold_checkpoint
    assert beat.next_at == 22
    beat.tell(News(checkpoint=None))
    assert beat.untold.checkpoint is None
    assert News().checkpoint is ABSENT


def test_a_hint_hastens_the_heartbeat_and_follows_the_one_under_way() -> None:
    beat = _beat()
    beat.hurry(1)
    assert beat.next_at == 1
    beat.sent(1)
    beat.hurry(2)
    beat.answered(1)
    assert beat.next_at == 1
    beat.sent(2)
    beat.answered(2)
    assert beat.next_at == 22


def test_a_flush_also_follows_the_heartbeat_under_way() -> None:
    beat = _beat()
    beat.sent(0)
    beat.tell(News(checkpoint=1))
    beat.flush(0)
    beat.answered(0)
    assert beat.next_at == 0


def test_intervals_too_long_for_the_lease_become_a_third_of_it() -> None:
    assert Beat(3, 2, 0, 0, 0).next_at == 1


def test_a_handler_is_tested_with_a_lease_of_its_own() -> None:
    def handler(ctx: tenure.TaskContext) -> int:
        step = ctx.previous_progress or 0
        while step < 3:
            ctx.check_cancelled()
            step += 1
            ctx.checkpoint(step)
        return step

    lease = TestLease("x", attempt=2, previous_progress=1)
    assert handler(lease.context) == 3
    assert lease.checkpoint == 3
    cancelled = TestLease("x")
    cancelled.cancel("enough")
    with pytest.raises(tenure.TaskCancelled, match="enough"):
        handler(cancelled.context)
    lost, hooks = TestLease("x"), list[int]()
    lost.lose()
    lost.context.on_lease_lost(lambda: hooks.append(1))
    assert hooks == [1]
    with pytest.raises(tenure.LeaseLost):
        handler(lost.context)
    assert not isinstance(tenure.TaskCancelled(), Exception)


def test_the_examples_in_the_module_hold() -> None:
    assert doctest.testmod(testing).failed == 0


@pytest.mark.parametrize(
    ("kind", "keeps_result", "word", "code"),
    [
        (None, False, "SUCCEEDED", None),
        (CancelKind.REQUESTED, False, "CANCELLED", None),
        (CancelKind.REQUESTED, True, "SUCCEEDED", None),
        (CancelKind.SHUTDOWN, False, "FAILED", "WORKER_SHUTDOWN"),
        (CancelKind.SHUTDOWN, True, "SUCCEEDED", None),
    ],
)
def test_what_is_returned_after_a_handler_was_told_to_stop_is_no_result_unless_it_is_kept(
    kind: CancelKind | None, keeps_result: bool, word: str, code: str | None
) -> None:
    reason = None if kind is None else CancelReason(kind, "enough")
    outcome = judge(Ended(b"1", None), reason, keeps_result)
    assert (outcome.word, outcome.output) == (word, b"1" if word == "SUCCEEDED" else None)
    assert (outcome.failure.code if outcome.failure else None) == code


def test_an_interrupt_hits_the_handler_only() -> None:
    """Fired around the end of a handler, many times: it is raised inside or not at all."""
    for _ in range(300):
        interrupt, begun = _Interrupt(), threading.Event()
        seen: list[str] = []

        def run(interrupt: _Interrupt = interrupt, begun: threading.Event = begun, seen: list[str] = seen) -> None:
            try:
                try:
                    interrupt.arm()
                    begun.set()
                    sum(range(50))
                    interrupt.disarm()
                except BaseException:
                    interrupt.disarm()
                    raise
            except tenure.LeaseLost:
                seen.append("lost")
            for _ in range(200):
                pass
            seen.append("after")

        thread = threading.Thread(target=run)
        thread.start()
        begun.wait()
        interrupt.fire()
        thread.join()
        assert seen in (["after"], ["lost", "after"])
    fired = _Interrupt()
    fired.fire()
    with pytest.raises(tenure.LeaseLost):
        fired.arm()


def test_secrets_do_not_print() -> None:
    worker = tenure.Worker(
        "http://h", queues=["q"], token="t0ken", dispatch_secret="s3cret", callback_urls=["http://h"]
    )
    assert "t0ken" not in repr(vars(worker))
    assert "s3cret" not in repr(vars(worker))
