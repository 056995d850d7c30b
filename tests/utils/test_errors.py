"""Which errors mean what to the command line."""

from __future__ import annotations

import pytest

from fedchoir.utils.errors import QuorumError, StorageError, UsageError, WorkerError


def test_wrong_input_is_a_value_error_and_failures_of_a_run_are_not() -> None:
    assert issubclass(UsageError, ValueError)
    for error in (QuorumError, StorageError, WorkerError):
        assert issubclass(error, RuntimeError)
        assert not issubclass(error, ValueError)


@pytest.mark.parametrize("error", [QuorumError, StorageError, WorkerError])
def test_a_failed_run_says_that_it_can_be_resumed(error: type[Exception]) -> None:
    assert "can be resumed" in str(error.__doc__)
