"""Devices of torch modules: their names, each trainer's share, what moves; no GPU is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.serialization import pickling
from pstrain.trainer.context import trainer_scope

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pstrain.torch import devices, modules  # noqa: E402

SCHEMA = ps.FeatureSchema(dense=["a", "b"], label="label")
META = torch.device("meta")


@pytest.fixture(autouse=True)
def _own_variables(own_parameters: None) -> None:  # noqa: ARG001
    torch.manual_seed(3)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "cpu"),
        ("cpu", "cpu"),
        ("cuda", "cuda"),
        ("cuda:1", "cuda:1"),
        ("mps", "mps"),
        (torch.device("cuda", 2), "cuda:2"),
    ],
)
def test_names_are_checked_without_a_device(given: Any, name: str) -> None:
    assert devices.checked(given, "net") == name
    assert ps.torch.Layer(nn.Linear(2, 1), device=given).device == name


@pytest.mark.parametrize(
    "make",
    [
        lambda m, d: ps.torch.Model(SCHEMA, m, device=d, name="net"),
        lambda m, d: ps.torch.Layer(m, device=d, name="net"),
    ],
)
@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("gpu", InvalidArgumentError, r"'net': torch knows no device 'gpu': .*give 'cuda'"),
        ("cuda:-1", InvalidArgumentError, r"torch knows no device 'cuda:-1'.*give 'cuda'"),
        ("", InvalidArgumentError, "torch knows no device ''"),
        ("meta", InvalidArgumentError, r"nothing can be computed on device 'meta'.*give 'cuda'"),
        (0, InvalidTypeError, r"'net': device is a string as torch takes it, .*got 0"),
    ],
)
def test_what_is_no_device_is_refused_when_the_layer_is_made(
    make: Any, device: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(nn.Linear(2, 1), device)


def test_consecutive_trainers_take_the_devices_in_turn() -> None:
    assert [devices.share_of(position, 2) for position in range(5)] == [0, 1, 0, 1, 0]
    assert [devices.share_of(position, 1) for position in range(3)] == [0, 0, 0]
    assert devices.share_of(3, 0) == 0


def test_a_device_that_a_trainer_lacks_is_named_with_the_trainer() -> None:
    layer = ps.torch.Layer(nn.Linear(2, 1), name="net", device="cuda:99")
    message = r"'net': {} cannot use device 'cuda:99' \(.*torch sees that device.*another device="
    with (
        trainer_scope(5, position=1),
        pytest.raises(FailedPreconditionError, match=message.format("trainer 5")),
    ):
        layer(np.ones((3, 2), np.float32))
    with pytest.raises(FailedPreconditionError, match=message.format("this process")):
        layer(np.ones((3, 2), np.float32))


def test_a_name_without_an_index_is_the_share_of_the_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 100)
    with (
        trainer_scope(5, position=199),
        pytest.raises(FailedPreconditionError, match="trainer 5 cannot use device 'cuda:99'"),
    ):
        devices.found("cuda", "net")


def test_the_processor_has_one_device() -> None:
    with trainer_scope(3):
        assert devices.found("cpu:1", "net") == torch.device("cpu")
    inputs = np.ones((3, 2), np.float32)
    module = nn.Linear(2, 1)
    expected = ps.torch.Layer(module)(inputs).value
    np.testing.assert_array_equal(ps.torch.Layer(module, device="cpu")(inputs).value, expected)


def test_a_program_needs_no_gpu_to_make_a_model_and_to_send_it() -> None:
    module = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    model = ps.torch.Model(SCHEMA, module, device="cuda:99")
    parameters = model.parameters
    sent = pickling.dumps(model, lambda value: ("p",) if value is parameters else None)
    arrived = pickling.loads(sent, lambda _key: parameters)
    assert arrived.network.device == "cuda:99"
    assert model.get_config()["device"] == "cuda:99"
    assert {value.device.type for value in arrived.to_module().parameters()} == {"cpu"}


def test_a_module_on_another_device_is_refused_with_both_remedies() -> None:
    with pytest.raises(InvalidArgumentError, match=r"on meta.*module\.cpu\(\), and device='cuda'"):
        ps.torch.Layer(nn.Linear(2, 1, device="meta"))


class _Scaled(nn.Module):
    """A module with a buffer that a state has, one that it has not, and one under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("same", self.scale)
        self.register_buffer("cache", torch.ones(1), persistent=False)

    def forward(self, x: Any) -> Any:
        assert self.same is self.scale
        return self.linear(x) * self.scale * self.cache


def test_buffers_are_where_the_values_are() -> None:
    # Tensors on torch's device "meta" have no values, but do not mix with those on the processor.
    layer = ps.torch.Layer(_Scaled())
    bare = modules.skeleton(_Scaled(), "net")
    values = {path: torch.empty_like(p, device=META) for path, p in bare.named_parameters()}
    for training in (False, True):
        inputs = [modules.as_tensor(np.ones((3, 2), np.float32), META)]
        output = modules.call(layer, bare, values, inputs, training=training, device=META)
        assert (output.device, output.shape) == (META, (3, 1))
    assert {buffer.device.type for buffer in bare.buffers()} == {"cpu"}
    # The copies for the two devices are separate.
    assert layer(np.ones((3, 2), np.float32)).shape == (3, 1)
