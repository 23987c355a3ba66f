"""Handlers are tested without a server."""

import operators
import pytest

from tenure import DataQualityError, TaskCancelled
from tenure.testing import TestLease


def test_extract_goes_on_where_it_was() -> None:
    lease = TestLease("extract", {"day": "2025-01-15"}, attempt=2, previous_progress=7)
    assert operators.extract(lease.context) == {"rows": 10_000, "begun_at": 7}
    assert lease.checkpoint == 10
    assert lease.progress == (90, "reading part 9 of 2025-01-15")


def test_extract_stops_when_told_to() -> None:
    lease = TestLease("extract", {"day": "2025-01-15"})
    lease.cancel()
    with pytest.raises(TaskCancelled):
        operators.extract(lease.context)


def test_a_payload_without_a_day_is_refused() -> None:
    with pytest.raises(DataQualityError):
        operators.extract(TestLease("extract", {}).context)
