"""Whose closures a trainer runs."""

from __future__ import annotations

from typing import Any

import pytest

from pstrain.errors import FailedPreconditionError
from pstrain.trainer.service import TrainerService
from pstrain.wire import trainer_pb2 as pb


class _Parameters:
    """Servers that nobody asks anything."""

    def close(self) -> None:
        pass


def _connect(_request: pb.ConfigureRequest) -> Any:
    return _Parameters()


def test_a_stream_that_reaches_a_trainer_started_anew_ends_and_the_coordinator_configures_it() -> (
    None
):
    service = TrainerService(_connect)
    assert list(service.run_closures(iter([pb.RunRequest(session="s1")]))) == []


def test_a_stream_of_another_coordinator_is_refused() -> None:
    service = TrainerService(_connect)
    service.configure(pb.ConfigureRequest(session="s2", incarnation=1))
    with pytest.raises(FailedPreconditionError, match="another coordinator"):
        list(service.run_closures(iter([pb.RunRequest(session="s1")])))
    service.close()
