"""Stand-ins for servers in pickled functions: they keep only the servers' addresses."""

from __future__ import annotations

import copy
import pickle

import pytest

from dataservice.runtime.pickling.stand_in import StandIn


def test_pickled_stand_in_keeps_only_its_known_attributes() -> None:
    held = pickle.loads(pickle.dumps(copy.deepcopy(StandIn("the Server", {"target": "a:1"}))))
    assert held.target == "a:1"
    assert repr(held) == "<the Server, in another process>"
    wanted = "the Server lives in the program that made it.*only its target, not 'stop'"
    with pytest.raises(AttributeError, match=wanted):
        held.stop()
