"""Objects that end with the program: each once, the newest first, even if one of them raises."""

from __future__ import annotations

import gc

import pytest

from dataservice.runtime.process import ending


class Served:
    def __init__(self, name: str, ended: list[str]) -> None:
        self.name, self.ended = name, ended
        ending.end_with_program(self, Served.stop)

    def stop(self) -> None:
        self.ended.append(self.name)
        if self.name == "bad":
            raise ValueError(self.name)
        if self.name == "slow":
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_running", type(ending._running)())


def test_objects_end_once_each_newest_first_despite_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []
    kept = [Served(name, ended) for name in ("dispatcher", "bad", "reader")]
    ending.end_all()
    ending.end_all()
    assert ended == ["reader", "bad", "dispatcher"]
    assert "could not be ended with the program" in caplog.text
    assert len(kept) == 3


def test_object_that_is_listed_while_others_end_ends_too() -> None:
    ended: list[str] = []
    kept = [Served("dispatcher", ended)]

    def save(name: str) -> Served:
        kept.append(Served(name, ended))
        return kept[-1]

    ending.end_with_program(save("reader"), lambda reader: (reader.stop(), save("save")))
    ending.end_all()
    assert ended == ["reader", "save", "dispatcher"]


def test_interrupt_gives_up_one_object_and_ends_the_others() -> None:
    ended: list[str] = []
    kept = [Served(name, ended) for name in ("coordinator", "slow", "reader")]
    with pytest.raises(KeyboardInterrupt):
        ending.end_all()
    assert ended == ["reader", "slow", "coordinator"]
    assert len(kept) == 3


def test_registered_object_is_not_kept_alive() -> None:
    ended: list[str] = []
    Served("forgotten", ended)
    gc.collect()
    ending.end_all()
    assert ended == []
