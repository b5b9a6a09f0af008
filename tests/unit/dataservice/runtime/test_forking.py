"""Objects of a parent process in a forked child: which may be used, and how the rest is left."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

import pytest

from dataservice.errors import FailedPreconditionError
from dataservice.runtime.process import forking
from dataservice.runtime.process.forking import Origin, left_to_parent


class PackageObject:
    pass


PackageObject.__module__ = "made_up.things"


def test_object_of_parent_process_is_refused_in_forked_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    origin = Origin()
    origin.check("a reader")
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert not origin.is_here
    said = (
        rf"a reader was made in process {parent}, from which this one \({parent + 1}\) was forked"
    )
    with pytest.raises(FailedPreconditionError, match=said):
        origin.check("a reader")
    assert Origin().is_here


def test_fork_leaves_reference_counts_of_parent_unchanged() -> None:
    thing: Any = left_to_parent(PackageObject())
    before = sys.getrefcount(thing)
    forking._add_references()
    assert sys.getrefcount(thing) > before
    forking._drop_references()
    assert sys.getrefcount(thing) == before
    forgotten = weakref.ref(thing)
    del thing
    assert forgotten() is None


def test_forked_child_detaches_finalizers_of_package_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forking, "_PACKAGES", ("made_up",))
    thing, other = PackageObject(), type("Other", (), {})()
    finalizers = [weakref.finalize(each, list) for each in (thing, other)]
    forking._detach_finalizers()
    assert [finalizer.alive for finalizer in finalizers] == [False, True]
