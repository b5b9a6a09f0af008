"""Which code is pickled by value: the user's own, and nothing that is installed."""

from __future__ import annotations

import pathlib
import pickle
import sys
import threading
import types
from typing import Any

import cloudpickle
import pytest

from dataservice.runtime.pickling import shipping
from dataservice.runtime.pickling.shipping import dumps, users_code_by_value


@pytest.fixture
def users_module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    (tmp_path / "my_features.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("my_features")
    monkeypatch.delitem(sys.modules, "my_features")
    monkeypatch.setitem(sys.modules, "my_features", module)
    return module


def test_users_own_code_is_pickled_by_value(
    users_module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with users_code_by_value():
        pickled = dumps(users_module.double)
    monkeypatch.delitem(sys.modules, "my_features")
    monkeypatch.setattr(sys, "path", [])
    assert pickle.loads(pickled)(4) == 8


def test_installed_code_is_pickled_by_name(users_module: types.ModuleType) -> None:
    import numpy as np

    with users_code_by_value():
        registered = cloudpickle.list_registry_pickle_by_value()
        assert "my_features" in registered
        assert not {"numpy", "dataservice", "pstrain", "json"} & set(registered)
        assert len(cloudpickle.dumps(np.mean)) < 200
    assert users_module.__name__ not in cloudpickle.list_registry_pickle_by_value()


def test_pickle_by_value_registry_is_copied_once_per_function(
    users_module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "my_alias", users_module)
    copies = []

    def copied() -> set[str]:
        copies.append(registered())
        return copies[-1]

    registered = cloudpickle.list_registry_pickle_by_value
    monkeypatch.setattr(cloudpickle, "list_registry_pickle_by_value", copied)
    with users_code_by_value():
        assert users_module.__name__ in registered()
    assert copies == [registered()]


def test_modules_are_inspected_again_only_when_loaded_modules_change(
    users_module: types.ModuleType, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    of_user = shipping._is_users_own

    def is_users_own(module: types.ModuleType) -> bool:
        looked_at.append(module.__name__)
        return of_user(module)

    def shipped(name: str) -> bool:
        looked_at.clear()
        with users_code_by_value():
            return name in cloudpickle.list_registry_pickle_by_value()

    monkeypatch.setattr(shipping, "_is_users_own", is_users_own)
    assert shipped(users_module.__name__)
    assert shipped(users_module.__name__)
    assert not looked_at
    (tmp_path / "my_labels.py").write_text("")
    other = __import__("my_labels")
    assert shipped("my_labels")
    monkeypatch.delitem(sys.modules, "my_labels")
    assert not shipped("my_labels")
    monkeypatch.setitem(sys.modules, "my_labels", other)
    assert shipped("my_labels")


def test_packages_of_other_environments_are_pickled_by_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, layered = tmp_path / "target", tmp_path / "base" / "site-packages"
    for folder, name in ((target, "in_target"), (target, "beside_it"), (layered, "in_layer")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("def double(x):\n    return 2 * x\n")
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(str(folder))
    record = target / "in_target-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Name: in_target\nVersion: 1.0\n")
    (record / "RECORD").write_text("in_target.py,,\nin_target-1.0.dist-info/RECORD,,\n")
    for name in ("in_target", "beside_it", "in_layer"):
        __import__(name)
    with users_code_by_value():
        registered = cloudpickle.list_registry_pickle_by_value()
    assert "beside_it" in registered
    assert not {"in_target", "in_layer"} & set(registered)


def test_users_code_by_value_can_be_nested(
    users_module: types.ModuleType,
) -> None:
    seen = []

    def nested() -> None:
        with users_code_by_value(), users_code_by_value():
            seen.append(users_module.__name__ in cloudpickle.list_registry_pickle_by_value())

    thread = threading.Thread(target=nested, daemon=True)
    thread.start()
    thread.join(30)
    assert seen == [True]
    assert users_module.__name__ not in cloudpickle.list_registry_pickle_by_value()


def test_unpickled_code_keeps_its_file_and_line() -> None:
    def outer() -> Any:
        def inner() -> None:
            raise ValueError("here")

        return inner

    sent = pickle.loads(dumps(outer))
    for here, there in ((outer, sent), (outer(), sent())):
        assert there.__code__.co_filename == here.__code__.co_filename == __file__
        assert there.__code__.co_firstlineno == here.__code__.co_firstlineno
    with pytest.raises(ValueError, match="here") as raised:
        sent()()
    assert 'raise ValueError("here")' in str(raised.traceback[-1].statement)
