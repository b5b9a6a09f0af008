"""The error for an unknown name lists the known names and suggests the nearest one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import dataservice as ds
import pstrain as ps
from dataservice.errors import InvalidArgumentError
from dataservice.runtime.arguments import check_choice, in_words, nearest
from dataservice.runtime.exchanges.transport import open_exchange
from pstrain.consistency import consistency_of
from pstrain.paramserver.transport import check_transport_dtype
from pstrain.variables.placement import placer

ROWS = ds.Dataset.range(4)


def distribute(mode: Any = ds.ShardingPolicy.DYNAMIC, **arguments: Any) -> Any:
    return ds.distribute(mode, "localhost:1", **arguments)


def exchange(protocol: str) -> None:
    with open_exchange("a:1", {}, protocol=protocol, token="", tls=None, timeout_s=1.0):
        pass


@pytest.mark.parametrize(
    ("call", "known", "meant"),
    [
        (lambda: distribute("dynmic"), "OFF, DYNAMIC, FILE", "ShardingPolicy.DYNAMIC"),
        (lambda: distribute("distributed_epoc"), "parallel_epochs", "'distributed_epoch'"),
        (lambda: distribute(compression="lz5"), "'ZSTD' or None", "'LZ4'"),
        (lambda: distribute(data_transfer_protocol="fligth"), "'grpc' or None", "'flight'"),
        (lambda: distribute(target_workers="Locl"), "'AUTO', 'ANY' or 'LOCAL'", "'LOCAL'"),
        (lambda: distribute(delivery="exactly-once"), "'at_most_once'", "'exactly_once'"),
        (lambda: distribute(on_error="skipp"), "'raise' or 'skip'", "'skip'"),
        (lambda: ROWS.map(dict, on_error="skips"), "'raise' or 'skip'", "'skip'"),
        (lambda: ROWS.map(dict, format="row"), "'numpy' or 'rows'", "'rows'"),
        (lambda: ds.WorkerConfig("a:1", data_transfer_protocol="flght"), "None", "'flight'"),
        (lambda: exchange("shared_memry"), "'grpc' or None", "'shared_memory'"),
        (lambda: placer("roundrobin", 2), "'round_robin' or 'bytes'", "'round_robin'"),
        (lambda: check_transport_dtype("bf16"), "'float32' or 'bfloat16'", "'bfloat16'"),
        (lambda: ps.v1.ParameterServerStrategy(transport_dtype="float"), "'bfloat16'", "'float32'"),
        (lambda: consistency_of("asynch", 2), "sync", "'async'"),
        (lambda: ps.optimizers.named("adagard"), "adagrad", "'adagrad'"),
        (lambda: ps.metrics.named("acuracy"), "log_loss", "'accuracy'"),
        (lambda: ps.models.from_config({"kind": "DeepFn"}), "DLRM", "'DeepFM'"),
        (lambda: ps.losses.BinaryCrossentropy(reduction="meen"), "'auto'", "'mean'"),
        (lambda: ps.layers.Interaction(2, 2, "dots"), "'sum'", "'dot'"),
        (lambda: ps.layers.Embedding(2, 2, combiner="sqrt"), "'mean'", "'sqrtn'"),
        (lambda: ps.callbacks.EarlyStopping(mode="mini"), "'max' or 'auto'", "'min'"),
    ],
)
def test_unknown_name_error_lists_choices_and_suggests_nearest(
    call: Callable[[], Any], known: str, meant: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    assert known in str(caught.value)
    assert f"; did you mean {meant}?" in str(caught.value)


@pytest.mark.parametrize(
    ("choices", "wrong", "meant"),
    [
        (ds.ShardingPolicy, "DYNMIC", "DYNAMIC"),
        (ps.AutoShardPolicy, "FILES", "FILE"),
        (ps.ReduceOp, "AVG_MEAN", "MEAN"),
    ],
)
def test_unknown_enum_member_error_lists_members_and_suggests_nearest(
    choices: Any, wrong: str, meant: str
) -> None:
    said = rf"{choices.__name__} has no '{wrong}'; there are .*{meant}.*mean {choices.__name__}."
    with pytest.raises(AttributeError, match=said) as caught:
        getattr(choices, wrong)
    assert (caught.value.name, caught.value.obj) == (wrong, choices)
    with pytest.raises(KeyError, match=said):
        choices[wrong]
    with pytest.raises(AttributeError, match="FOO"):
        _ = choices.FOO
    for same in (copy.deepcopy(choices[meant]), pickle.loads(pickle.dumps(choices[meant]))):
        assert same is getattr(choices, meant)
    assert not hasattr(choices, "__wrapped__")


def test_name_far_from_all_choices_is_refused_without_suggestion() -> None:
    assert nearest("pigeon", ("flight", "grpc")) == ""
    assert in_words(["a"]) == "'a'"
    for value in (3, ["a"], b"a"):
        with pytest.raises(InvalidArgumentError, match="x must be one of 'a' or None, got "):
            check_choice("x", value, ("a", None))
    check_choice("x", None, ("a", None))
