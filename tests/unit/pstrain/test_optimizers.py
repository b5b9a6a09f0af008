"""Optimizers: their arithmetic against NumPy, pairs of gradients, refusals, configuration."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataservice.errors import DataServiceWarning
from pstrain import optimizers
from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.checkpoints.objects import read_config
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.gradients.recording import record
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.layers import Embedding
from pstrain.optimizers import SGD, Adagrad, schedules
from pstrain.optimizers.clipping import Clipping
from pstrain.optimizers.pairs import from_pairs
from pstrain.paramserver.rules import BoundRule
from pstrain.trainer.rounds import RoundCommitter
from pstrain.variables.indexed_slices import IndexedSlices
from pstrain.variables.parameters import step_scope
from pstrain.variables.rows import look_up
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable
from pstrain.vocabulary import OptimizerSpec, StepToken, Update

pytestmark = pytest.mark.usefixtures("own_parameters")

GRADIENT = np.array([0.5, -2.0, 0.0], dtype=np.float32)


def test_sgd_steps_against_gradient() -> None:
    variable, optimizer = Variable(np.zeros(3, np.float32), name="x"), SGD(0.1)
    for _ in range(2):
        optimizer.apply_gradients([(GRADIENT, variable)])
    np.testing.assert_allclose(variable.numpy(), -0.2 * GRADIENT, rtol=1e-6)
    assert int(optimizer.iterations) == 2


def test_adagrad_changes_looked_up_rows_only() -> None:
    layer, optimizer = Embedding(5, 2), Adagrad(0.5)
    before = layer.variables[0].numpy()
    with GradientTape() as tape:
        rows = layer(np.array([1, 3, 1]))
        loss = record(Tensor(rows.value.sum()), (rows,), lambda g: np.full(rows.shape, g))
    gradients = tape.gradients(loss)
    optimizer.apply_gradients([(gradients.of(layer.variables[0]), layer.variables[0])])
    moved = before - layer.variables[0].numpy()
    expected = np.zeros((5, 2))
    expected[1], expected[3] = 0.5 * 2 / np.sqrt(4.1), 0.5 / np.sqrt(1.1)
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-7)


def test_indexed_slices_with_repeated_index_are_summed() -> None:
    table, optimizer = Variable(np.zeros((6, 2), np.float32), name="t"), SGD(1.0)
    values = np.arange(8.0).reshape(4, 2)
    optimizer.apply_gradients([(IndexedSlices(values, [4, 1, 4, 0]), table)])
    expected = np.zeros((6, 2))
    np.subtract.at(expected, [4, 1, 4, 0], values)
    np.testing.assert_array_equal(table.numpy(), expected)


@pytest.mark.parametrize(
    ("slices", "match"),
    [
        (IndexedSlices(np.ones((1, 2)), [6]), "id 6"),
        (IndexedSlices(np.ones((1, 2)), [0.5]), "must be integers"),
        (IndexedSlices(np.ones((2, 2)), [1]), r"shape \(2, 2\)"),
        (IndexedSlices(np.ones((1, 3)), [1]), r"shape \(1, 3\)"),
    ],
)
def test_indexed_slices_of_wrong_shape_or_index_are_refused(
    slices: IndexedSlices, match: str
) -> None:
    table = Variable(np.zeros((6, 2), np.float32), name="t")
    with pytest.raises(InvalidArgumentError, match=match):
        SGD().apply_gradients([(slices, table)])


def test_pairs_without_gradient_are_skipped() -> None:
    first, second = Variable(np.zeros(3, np.float32), name="a"), Variable(np.zeros(1, np.float32))
    SGD(1.0).apply_gradients([(GRADIENT, first), (None, second)])
    np.testing.assert_array_equal(first.numpy(), -GRADIENT)
    with pytest.raises(InvalidArgumentError, match="no gradients"):
        SGD(1.0).apply_gradients([(None, second)])


def test_apply_gradients_accepts_keras_argument_names() -> None:
    x = Variable(1.0)
    SGD(1.0).apply_gradients(grads_and_vars=[(np.float32(0.5), x)])
    assert float(x) == 0.5
    with pytest.raises(InvalidTypeError, match="apply_gradients takes no argument 'name'"):
        SGD(1.0).apply_gradients([], name="step")  # type: ignore[call-arg]


def test_apply_gradients_refuses_values_that_are_no_pairs() -> None:
    x = Variable(1.0)
    gradient = np.float32(1.0)
    update = Update(x.spec, np.ones((), np.float32))
    for wrong in ([gradient], [(x, gradient)], [update], [(gradient, x, 1)], [x], [None], 5):
        with pytest.raises(InvalidTypeError, match=r"zip\(gradients, variables\)"):
            optimizers.SGD(0.1).apply_gradients(wrong)
    assert float(x) == 1.0


@pytest.mark.parametrize("rate", [float("nan"), -0.5, None])
def test_schedule_returning_invalid_rate_at_later_step_is_refused(rate: Any) -> None:
    class Wrong(schedules.LearningRateSchedule):
        def __call__(self, step: int) -> float:
            return 1.0 if step == 0 else rate

    variable = Variable(np.zeros(3, np.float32), name="x")
    optimizer = SGD(Wrong())
    optimizer.apply_gradients([(GRADIENT, variable)])
    with pytest.raises(
        (InvalidArgumentError, InvalidTypeError), match="learning rate of step 1 mu"
    ):
        optimizer.apply_gradients([(GRADIENT, variable)])
    np.testing.assert_array_equal(variable.numpy(), -GRADIENT)


def test_ftrl_refuses_learning_rate_of_zero() -> None:
    variable = Variable(np.ones(3, np.float32), name="x")
    optimizer = optimizers.Ftrl(schedules.PolynomialDecay(0.1, 2, 0.0))
    for _ in range(2):
        optimizer.apply_gradients([(GRADIENT, variable)])
    before = variable.numpy()
    with pytest.raises(InvalidArgumentError, match=r"Ftrl divides.*step 2 must be at least 1e-30"):
        optimizer.apply_gradients([(GRADIENT, variable)])
    np.testing.assert_array_equal(variable.numpy(), before)
    for refused in (lambda: optimizers.Ftrl(0.0), lambda: optimizer.with_learning_rate(0.0)):
        with pytest.raises(InvalidArgumentError, match="Ftrl divides by its learning rate"):
            refused()


class HalvingSchedule(schedules.LearningRateSchedule):
    def __call__(self, step: int) -> float:
        return 0.5**step


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(HalvingSchedule(), clipnorm=np.float32(2.0)),
        lambda: Adagrad(np.float32(0.5), epsilon=np.float32(1e-3)),
        lambda: optimizers.Momentum(0.1, np.float32(0.5), l2=np.float64(0.1)),
        lambda: optimizers.Ftrl(0.1, l1_regularization_strength=np.float32(0.2)),
        lambda: SGD(schedules.PiecewiseConstantDecay(np.array([3]), np.array([0.5, 0.25]))),
        lambda: SGD(schedules.ExponentialDecay(np.float32(0.5), np.int64(10), 0.5)),
    ],
)
def test_optimizer_config_with_user_schedule_or_numpy_numbers_is_saved(
    make: Callable[[], optimizers.Optimizer], tmp_path: Path
) -> None:
    optimizer = make()
    path = Checkpoint(optimizer=optimizer).save(tmp_path)
    Checkpoint(optimizer=make()).restore(path)
    assert read_config(path, "optimizer") == json.loads(json.dumps(optimizer.get_config()))


def test_user_schedule_cannot_be_recreated_from_config() -> None:
    config = SGD(HalvingSchedule()).get_config()
    assert config["learning_rate"] == {"kind": "HalvingSchedule"}
    with pytest.raises(InvalidArgumentError, match="unknown schedule 'HalvingSchedule'"):
        optimizers.from_config(config)


def test_missing_keras_method_of_optimizer_is_refused_with_remedy() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'minimize': .*GradientTape"):
        SGD().minimize  # noqa: B018


def test_plain_function_as_learning_rate_is_refused_with_remedy() -> None:
    with pytest.raises(InvalidTypeError, match="subclass of LearningRateSchedule"):
        optimizers.SGD(lambda step: 0.1 / step)  # type: ignore[arg-type]


def test_gradient_counts_as_it_was_given_in_whatever_form() -> None:
    """A closure sends it at its end, when the caller may have used the array for something else."""
    gradient = np.arange(6.0).reshape(3, 2).T
    table = Variable(np.zeros((2, 3), np.float32), name="t")
    (update,) = from_pairs([(gradient, table)]).updates
    expected = gradient.tolist()
    gradient[:] = 0.0
    assert update.gradient.tolist() == expected
    assert update.gradient.dtype == np.float32
    assert update.gradient.flags.c_contiguous


def test_gradient_of_wrong_shape_is_refused() -> None:
    variable = Variable(np.zeros(3, np.float32), name="x")
    with pytest.raises(
        InvalidArgumentError, match=r"shape \(2,\) for variable 'x' of shape \(3,\)"
    ):
        SGD().apply_gradients([(np.zeros(2), variable)])


def test_optimizer_refuses_variables_of_other_parameters() -> None:
    optimizer = SGD()
    with local_parameters():
        variable = Variable(np.zeros(3, np.float32), name="elsewhere")
    with pytest.raises(InvalidArgumentError, match=r"elsewhere.*strategy\.scope"):
        optimizer.apply_gradients([(GRADIENT, variable)])
    here = Variable(np.zeros(3, np.float32), name="here")
    with pytest.raises(InvalidArgumentError, match="'elsewhere' lives elsewhere"):
        optimizer.apply_gradients([(GRADIENT, here), (GRADIENT, variable)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(0.25, l2=0.1, clipvalue=2.0),
        lambda: Adagrad(0.5, 0.2, 1e-3),
        lambda: optimizers.RowWiseAdagrad(0.5, global_clipnorm=3.0),
        lambda: optimizers.Momentum(0.1, 0.5, nesterov=True),
        lambda: optimizers.RMSprop(0.1, rho=0.8),
        lambda: optimizers.RMSprop(0.1, momentum=0.8),
        lambda: optimizers.Adam(schedules.ExponentialDecay(0.1, 10, 0.5), clipnorm=1.0),
        lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.2),
    ],
)
def test_optimizer_is_recreated_from_its_configuration(
    make: Callable[[], optimizers.Optimizer],
) -> None:
    optimizer = make()
    config = optimizer.get_config()
    again = optimizers.from_config(json.loads(json.dumps(config)))
    assert again.spec == type(optimizer).from_config(config).spec == optimizer.spec
    assert again.get_config() == config
    assert again.learning_rate == optimizer.learning_rate


def test_configuration_of_another_optimizer_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"of 'adam', not of 'sgd': write optimizers\.f"):
        optimizers.SGD.from_config(optimizers.Adam().get_config())


def test_unknown_optimizer_name_error_lists_known_names() -> None:
    with pytest.raises(InvalidArgumentError, match=r"unknown optimizer 'lamb'.*adam, ftrl"):
        optimizers.from_config({"name": "lamb", "learning_rate": 0.1})


def test_optimizer_uses_rate_of_schedule_at_each_step() -> None:
    variable = Variable(np.zeros(3, np.float32), name="x")
    optimizer = SGD(schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.1, 0.01]))
    for _ in range(20):
        optimizer.apply_gradients([(GRADIENT, variable)])
    np.testing.assert_allclose(variable.numpy(), -(1.0 + 0.1 + 18 * 0.01) * GRADIENT, rtol=1e-5)
    fixed = optimizer.with_learning_rate(1.0)
    fixed.apply_gradients([(GRADIENT, variable)])
    np.testing.assert_allclose(variable.numpy(), -2.28 * GRADIENT, rtol=1e-5)


def test_pickled_step_counter_continues_schedule() -> None:
    variable = Variable(np.zeros(3, np.float32), name="x")
    optimizer = SGD(schedules.PiecewiseConstantDecay([0], [1.0, 0.0]))
    optimizer.apply_gradients([(GRADIENT, variable)])
    counter = pickle.loads(pickle.dumps(optimizer._counter))
    assert counter.next_step(optimizer.iterations) == 1


def test_step_counter_is_read_again_by_each_closure_under_sync_rounds() -> None:
    """A trainer may have taken no part in the rounds before."""
    optimizer = SGD(0.1)
    servers: Any = optimizer.iterations.parameters
    committer = RoundCommitter(servers, "t", list, list, lambda result, _: result, False)
    steps = []
    for closure in range(3):
        token = StepToken("s", closure, 1)
        with step_scope(token, committer.new_run(token, 0)):
            steps += [optimizer._counter.next_step(optimizer.iterations) for _ in "12"]
        servers.assign(optimizer.iterations.spec, "add", 5)
    assert steps == [0, 1, 5, 6, 10, 11]


def test_schedule_continues_from_checkpointed_step_after_restore(tmp_path: Path) -> None:
    variable = Variable(np.zeros(3, np.float32), name="x")
    optimizer = SGD(schedules.PiecewiseConstantDecay([2], [1.0, 0.0]))
    checkpoint = Checkpoint(x=variable, optimizer=optimizer)
    optimizer.apply_gradients([(GRADIENT, variable)])
    path = checkpoint.save(tmp_path)
    at_trainers = pickle.dumps(optimizer._counter)
    for _ in range(5):
        optimizer.apply_gradients([(GRADIENT, variable)])
    checkpoint.restore(path)
    assert pickle.dumps(optimizer._counter) != at_trainers, "trainers would keep theirs"
    for _ in range(5):
        optimizer.apply_gradients([(GRADIENT, variable)])
    np.testing.assert_array_equal(variable.numpy(), -3 * GRADIENT)


def test_assigned_learning_rate_is_saved_and_restored(tmp_path: Path) -> None:
    optimizer = SGD(schedules.PiecewiseConstantDecay([0], [1.0, 0.5]))
    checkpoint = Checkpoint(optimizer=optimizer)
    made = checkpoint.save(tmp_path)
    optimizer.learning_rate = 0.1
    set_ = checkpoint.save(tmp_path)
    again = SGD(3.0)
    Checkpoint(optimizer=again).restore(made)
    assert again.learning_rate == 3.0
    for _ in range(2):
        Checkpoint(optimizer=again).restore(set_)
        assert again.learning_rate == again.spec.learning_rate == 0.1
        set_ = Checkpoint(optimizer=again).save(tmp_path)
    optimizer.learning_rate = 0.2
    checkpoint.restore(set_, keeps_rates=True)
    assert optimizer.learning_rate == 0.2
    checkpoint.restore(made)
    assert isinstance(optimizer.learning_rate, schedules.PiecewiseConstantDecay)
    assert optimizer.saved_rate() == {"rate": None}, "the program has set none"


def test_assigned_schedule_is_saved_and_restored(tmp_path: Path) -> None:
    optimizer = SGD(1.0)
    schedule = schedules.PiecewiseConstantDecay(np.array([1, 3]), [1.0, 0.5, 0.25])
    optimizer.learning_rate = schedule
    optimizer.iterations.assign(2)
    saved = Checkpoint(optimizer=optimizer).save(tmp_path)
    again = SGD(3.0)
    for _ in range(2):
        Checkpoint(optimizer=again).restore(saved)
        variable = Variable(np.zeros(3, np.float32), name="x")
        for moved in (0.5, 1.0, 1.25):  # steps 2 and 3 at 0.5, step 4 at 0.25
            again.apply_gradients([(GRADIENT, variable)])
            np.testing.assert_array_equal(variable.numpy(), -moved * GRADIENT)
        again.learning_rate = 0.1


def test_checkpoint_without_learning_rate_leaves_rate_unchanged() -> None:
    optimizer = SGD(1.0)
    optimizer.learning_rate = 0.1
    optimizer.restore_rate({})
    assert optimizer.learning_rate == 0.1


def test_restore_of_a_rate_that_was_never_set_brings_back_the_constructors() -> None:
    """Who makes the optimizer with another rate in the next program means that rate."""
    saved, optimizer = SGD(0.1).saved_rate(), SGD(0.5)
    optimizer.restore_rate(saved)
    assert optimizer.learning_rate == 0.5
    optimizer.learning_rate = 0.9
    optimizer.restore_rate(saved)
    assert optimizer.learning_rate == 0.5
    assert optimizer.saved_rate() == saved


def test_restore_warns_of_assigned_user_schedule_that_was_not_saved(tmp_path: Path) -> None:
    optimizer = SGD(1.0)
    optimizer.learning_rate = HalvingSchedule()
    saved = Checkpoint(optimizer=optimizer).save(tmp_path)
    Checkpoint(optimizer=optimizer).restore(saved)
    assert isinstance(optimizer.learning_rate, HalvingSchedule)
    again = SGD(0.1)
    with pytest.warns(
        DataServiceWarning, match=r"set optimizer.learning_rate = HalvingSchedule\(\.\.\.\)"
    ):
        Checkpoint(optimizer=again).restore(saved)
    assert again.learning_rate == 0.1


@pytest.mark.parametrize("change", ["assign", "assign_add", "assign_sub"])
def test_assigned_iterations_take_effect_at_next_step(change: str) -> None:
    variable = Variable(np.zeros(3, np.float32), name="x")
    optimizer = SGD(schedules.PiecewiseConstantDecay([2], [1.0, 0.0]))
    optimizer.iterations.assign(100)
    optimizer.apply_gradients([(GRADIENT, variable)])
    at_trainers = pickle.dumps(optimizer._counter)
    getattr(optimizer.iterations, change)({"assign": 1, "assign_add": -100}.get(change, 100))
    assert pickle.dumps(optimizer._counter) != at_trainers, "trainers would keep theirs"
    for _ in range(5):
        optimizer.apply_gradients([(GRADIENT, variable)])
    np.testing.assert_array_equal(variable.numpy(), -2 * GRADIENT)


def test_global_clipnorm_bounds_norm_over_all_variables() -> None:
    variables = [Variable(np.zeros(2, np.float32), name=name) for name in "ab"]
    gradients = [np.array([3.0, 0.0], np.float32), np.array([0.0, 4.0], np.float32)]
    SGD(1.0, global_clipnorm=1.0).apply_gradients(zip(gradients, variables, strict=True))
    np.testing.assert_allclose(variables[0].numpy(), [-0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(variables[1].numpy(), [0.0, -0.8], rtol=1e-6)
    assert gradients[0][0] == 3.0, "the caller's gradient is not changed"


@pytest.mark.parametrize("bound", ["norm", "global_norm"])
def test_gradients_within_their_bound_stay_as_they_are(bound: str) -> None:
    update = Update(Variable(np.zeros(2, np.float32)).spec, np.array([3.0, 4.0], np.float32))
    for most in (5.0, 50.0):
        assert Clipping(**{bound: most}).clip((update,))[0] is update
    (clipped,) = Clipping(**{bound: 4.0}).clip((update,))
    np.testing.assert_allclose(clipped.gradient, [2.4, 3.2], rtol=1e-6)


@pytest.mark.parametrize("bound", ["norm", "global_norm"])
def test_clipped_row_gradients_do_not_depend_on_row_order(bound: str) -> None:
    rng = np.random.default_rng(0)
    table, rows = Variable(np.zeros((500, 3), np.float32)), rng.normal(size=(500, 3))
    clipping, ends = Clipping(**{bound: 0.1}), []
    for order in [np.arange(500), *(rng.permutation(500) for _ in range(20))]:
        lookup = look_up(table.spec, order)
        update = Update(table.spec, rows[order].astype(np.float32), lookup)
        (clipped,) = clipping.clip((update,))
        ends.append(clipped.gradient[np.argsort(order)])
    assert all(np.array_equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(0.1, clipnorm=1.0, clipvalue=1.0), "at most one of clipvalue"),
        (lambda: SGD(0.1, clipnorm=0.0), "clipnorm must be positive, got 0"),
        (lambda: optimizers.Adam(beta_1=1.0), "beta_1 must be at least 0 and below 1"),
        (lambda: optimizers.Ftrl(learning_rate_power=0.5), "learning_rate_power must not"),
        (lambda: optimizers.Ftrl(l2=0.5), "l2_regularization_strength"),
        (lambda: schedules.ExponentialDecay(0.1, 0, 0.5), "decay_steps must be positive"),
        (lambda: schedules.PiecewiseConstantDecay([1], [0.1]), "one value more"),
        (lambda: schedules.PiecewiseConstantDecay([2, 1], [1, 2, 3]), "boundaries must rise"),
        (lambda: schedules.PiecewiseConstantDecay([2, 2], [1, 2, 3]), "boundaries must rise"),
        (lambda: schedules.CosineDecayRestarts(0.1, 7, t_mul=0.9), "t_mul must be at least 1"),
        (lambda: schedules.CosineDecayRestarts(0.1, 0), "first_decay_steps must be positive"),
        (lambda: schedules.from_config({"kind": "Sawtooth"}), "unknown schedule 'Sawtooth'"),
    ],
)
def test_invalid_optimizer_and_schedule_parameters_are_refused(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_learning_rate_is_read_and_assigned_as_in_keras() -> None:
    optimizer: Any = SGD(0.1)
    rate = optimizer.learning_rate
    assert rate.numpy() == 0.1
    rate.assign(0.5)
    assert (optimizer.learning_rate, rate) == (0.5, 0.1)
    assert not optimizer.iterations.trainable


def test_copy_of_a_learning_rate_is_a_number_of_no_optimizer() -> None:
    rate = pickle.loads(pickle.dumps(SGD(0.1).learning_rate))
    assert rate.numpy() == 0.1
    with pytest.raises(FailedPreconditionError, match=r"write optimizer.learning_rate = 0.5"):
        rate.assign(0.5)


def test_arguments_of_an_optimizer_are_read_and_cannot_be_changed_in_vain() -> None:
    optimizer: Any = optimizers.Adam(0.1, clipnorm=3.0, l2=0.25)
    assert (optimizer.clipnorm, optimizer.clipvalue, optimizer.l2) == (3.0, None, 0.25)
    assert optimizer.beta_1 == optimizer.get_config()["beta_1"]
    optimizer.clipnorm = 3.0
    with pytest.raises(AttributeError, match=r"'clipnorm' of this 'Adam' .* with clipnorm=1"):
        optimizer.clipnorm = 1
    with pytest.raises(AttributeError, match=r"no attribute 'momentum'"):
        _ = optimizer.momentum
    assert copy.copy(optimizer).l2 == 0.25


def test_name_that_a_subclass_defines_is_its_own() -> None:
    class Ported(SGD):
        @property
        def lr(self) -> Any:
            return self.learning_rate

        @lr.setter
        def lr(self, rate: float) -> None:
            self.learning_rate = rate

    optimizer = Ported(0.1)
    optimizer.lr = 0.25
    assert optimizer.lr == optimizer.spec.learning_rate == 0.25
    with pytest.raises(AttributeError, match="write learning_rate"):
        SGD(0.1).lr = 0.25  # type: ignore[attr-defined]


def test_adam_counts_updates_per_row() -> None:
    layer, optimizer = Embedding(4, 2), optimizers.Adam(0.1)
    before = layer.variables[0].numpy()
    for ids in ([0], [0], [0], [0, 3]):
        with GradientTape() as tape:
            rows = layer(np.array(ids))
            ones = np.ones(rows.shape, np.float32)
            loss = record(Tensor(rows.value.sum()), (rows,), lambda g, ones=ones: g * ones)
        optimizer.apply_gradients(tape.gradients(loss))
    moved = before - layer.variables[0].numpy()
    np.testing.assert_allclose(moved[0], 0.4, rtol=1e-4)
    np.testing.assert_allclose(moved[3], 0.1, rtol=1e-4)
    np.testing.assert_array_equal(moved[1:3], 0.0)


def test_optimizer_rule_text_is_parsed_once() -> None:
    rate: float = np.float32(0.5)  # type: ignore[assignment]
    rule = OptimizerSpec(
        name="adagrad", learning_rate=rate, parameters={"epsilon": 0.25}, slots=(0.1,)
    )
    read = OptimizerSpec.from_text(rule.text)
    assert read == rule
    assert OptimizerSpec.from_text(rule.text) is read
    assert BoundRule.of(read).hyper.tolist() == [0.5, 0.0, 0.25]
    faster = dataclasses.replace(read, learning_rate=0.75)
    assert BoundRule.of(faster).hyper.tolist() == [0.75, 0.0, 0.25]
    assert pickle.loads(pickle.dumps(faster)).text == faster.text
