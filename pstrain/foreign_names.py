"""What programs written for TensorFlow and Keras say, and what does it here: arguments and names.

Only words for errors, and the ways to say them. Invariant: no argument here is one that the
callable takes, and no name one that the module or class has.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar, cast

from pstrain.errors import InvalidTypeError

Called = TypeVar("Called", bound=Callable[..., Any])

_ROWS: Final = "metrics count every row alike: repeat or leave out rows in the dataset"
_READING: Final = "the dataset says how it is read: distribute() it to data workers"
_LOSS: Final = "models minimise the log loss; for another write a step with a GradientTape"
FIT: Final = {
    "x": "write data=, a Dataset of batches, a table, DataFrame or dict of arrays, labels included",
    "y": "labels are a column of data=, which the model's schema names (label=)",
    "validation_split": "write validation_data=; Dataset.take(n) and skip(n) divide a dataset",
    "validation_steps": "write validation_data=dataset.take(n), of so many batches",
    "validation_batch_size": "validation_data in batches of its own size: Dataset.batch(n)",
    "shuffle": "write dataset.shuffle(buffer_size)",
    "workers": _READING,
    "use_multiprocessing": _READING,
    "max_queue_size": _READING,
}
EVALUATE: Final = {name: FIT[name] for name in ("x", "y", "workers")} | {
    "return_dict": "a dict is what there is, by name"
}
PREDICT: Final = {"x": FIT["x"], "workers": _READING, "verbose": "it prints nothing"}
CALL: Final = {
    "training": "under a GradientTape it trains, elsewhere it predicts: leave it out",
    "mask": "lists are as long as they are",
}
_COMPILED: Final = "kernels are compiled always"
COMPILE: Final = {
    "loss": _LOSS,
    "loss_weights": _LOSS,
    "weighted_metrics": _ROWS,
    "run_eagerly": "steps always run as they are written",
    "jit_compile": _COMPILED,
    "steps_per_execution": "write fit(steps_per_execution=...)",
}
_PENALTY: Final = "optimizers take l2="
EMBEDDING: Final = {
    "input_dim": "write vocabulary_sizes=, a number or one for each field",
    "output_dim": "write dim=",
    "embeddings_initializer": "name= and seed= decide; a Variable takes any initializer",
    "embeddings_regularizer": _PENALTY,
    "mask_zero": "lists are as long as they are: combiner= pools them",
    "input_length": "lists are as long as they are",
}
DENSE: Final = {
    "input_dim": "write input_size=",
    "input_shape": "write input_size=",
    "bias_initializer": "it starts at 0",
    "kernel_regularizer": _PENALTY,
    "bias_regularizer": _PENALTY,
}
_EMA: Final = "average in the program what variables read as"
OPTIMIZER: Final = {
    "lr": "write learning_rate=",
    "decay": "give learning_rate= a schedule, such as schedules.InverseTimeDecay",
    "weight_decay": "write l2=, which is added to the gradient",
    "amsgrad": "Adam is lazy here: only rows that a step touches change",
    "centered": "the mean is that of the squares: leave it out",
    "use_ema": _EMA,
    "ema_momentum": _EMA,
    "ema_overwrite_frequency": _EMA,
    "loss_scale_factor": "losses and gradients are float32, which needs no scale",
    "jit_compile": _COMPILED,
    "name": "its name is that of its rule",
    "gradient_accumulation_steps": 'write consistency="sync": a step of all trainers\' gradients',
}
_MOMENTUM: Final = "write optimizers.Momentum(learning_rate, momentum, nesterov)"
_MEANS: Final = "each step applies what it is given: leave it out"
APPLY_GRADIENTS: Final = {
    "gradients": "write grads_and_vars=, or give them first",
    "name": "steps have no names",
    "skip_gradients_aggregation": _MEANS,
    "experimental_aggregate_gradients": _MEANS,
}
SGD: Final = {"momentum": _MOMENTUM, "nesterov": _MOMENTUM}
OPTIMIZER_OBJECT: Final = {
    "build": "slots are made beside the variables, by the first step",
    "compute_gradients": "write tape.gradients(loss)",
    "get_slot": "slots are beside the variables, and in checkpoints",
    "lr": "write learning_rate",
    "minimize": "write a step with a GradientTape, and apply_gradients(tape.gradients(loss))",
    "set_weights": "write Checkpoint(optimizer=optimizer).restore(path)",
}
CHECKPOINT: Final = {
    "filepath": "write directory=, in which each checkpoint is one of its own",
    "save_freq": "write every= (epochs) or every_steps=",
    "save_weights_only": "the model, its optimizer and the data position are saved together",
    "period": "write every=",
}
PLATEAU: Final = {"epsilon": "write min_delta="}
_NUMBERS_ONLY: Final = "it writes numbers, those of the logs"
TENSORBOARD: Final = {
    **dict.fromkeys(
        ("embeddings_freq", "embeddings_metadata", "histogram_freq", "write_graph", "write_images"),
        _NUMBERS_ONLY,
    ),
    "profile_batch": "write with coordinator.trace(path)",
    "write_steps_per_second": "examples_per_s is in the logs",
}
_EXACT: Final = "states are integers, so that sums are exact: leave it out"
_PROBABILITIES: Final = "give losses.sigmoid(logits)"
_BINARY: Final = "labels are 0 or 1, one for each row: make one metric for each label"
NEW_METRIC: Final = {"dtype": _EXACT}
AUC: Final = {
    "num_thresholds": "write bins=",
    "thresholds": "write bins=, a number of equal ones",
    "from_logits": _PROBABILITIES,
    "curve": "it is that of the ROC",
    "summation_method": "it is the trapezoid rule",
    "multi_label": _BINARY,
    "num_labels": _BINARY,
    "label_weights": _BINARY,
    "dtype": _EXACT,
}
_SMOOTH: Final = "smooth the labels in the dataset"
LOG_LOSS: Final = {
    "from_logits": _PROBABILITIES,
    "label_smoothing": _SMOOTH,
    "axis": _BINARY,
    "dtype": _EXACT,
}
METRIC: Final = {
    "y_true": "write labels=, or give them first",
    "y_pred": "write probabilities=, or give them second",
    "sample_weight": _ROWS,
}
BINARY_CROSSENTROPY: Final = {
    "label_smoothing": _SMOOTH,
    "axis": "the loss is the mean over the batch",
    "name": "a loss has none",
    "dtype": "it is float32",
}
LOSS: Final = {
    "y_true": "write labels=, or give them first",
    "y_pred": "write predictions=, or give them second",
}
LOOKUP: Final = {
    "output_mode": "it gives ids; Embedding, or a Category of the schema, makes of them what it is",
    "pad_to_max_tokens": "ids are those of the vocabulary; vocabulary_sizes= may be larger",
    "idf_weights": "weights are a column of lists: Category(..., weights=...)",
}

_HERE: Final = "its names are here, in pstrain itself"
_NUMPY: Final = "NumPy's functions take tensors and variables: np.mean(losses), np.tanh(tensor)"
_DTYPE: Final = "types are NumPy's: np.float32, or its name as text"
_IN_STEP: Final = "ParameterServerStrategy(..., consistency=consistency.sync()) trains in step"
PSTRAIN: Final = {
    **dict.fromkeys(
        (
            "cast",
            "concat",
            "constant",
            "convert_to_tensor",
            "expand_dims",
            "gather",
            "linalg",
            "math",
            "matmul",
            "nn",
            "one_hot",
            "ones",
            "random",
            "reduce_max",
            "reduce_mean",
            "reduce_sum",
            "reshape",
            "sigmoid",
            "square",
            "where",
            "zeros",
        ),
        _NUMPY,
    ),
    **dict.fromkeys(("bool", "float32", "float64", "int32", "int64", "string"), _DTYPE),
    "Model": "models are in pstrain.models; pstrain.torch.Model takes any torch module",
    "cluster_resolver": _HERE,
    "parameter_server_strategy": _HERE,
    "saved_model": "write model.save_weights(path), and keep model.get_config()",
    "summary": "write callbacks.TensorBoard(log_dir)",
    "DatasetCreator": "give fit a function that makes a dataset, or a Dataset",
    "DistributedDataset": "strategy.experimental_distribute_dataset(dataset) makes one",
    "MirroredStrategy": _IN_STEP,
    "MultiWorkerMirroredStrategy": _IN_STEP,
    "CentralStorageStrategy": "what is made outside of a scope is in this process",
    "OneDeviceStrategy": "what is made outside of a scope is in this process",
    "Module": "write a subclass of layers.Layer",
    "PerWorkerValues": "ClusterCoordinator.create_per_worker_dataset(...) makes what each has of",
    "RunOptions": "strategy.run takes none",
    "Sequential": "models are in pstrain.models; pstrain.torch.Model takes any torch module",
    "TF_ConfigClusterResolver": "write TFConfigClusterResolver",
    "data": "write import dataservice as ds; datasets are ds.Dataset",
    "distribute": _HERE,
    "experimental": _HERE,
    "TPUStrategy": _IN_STEP,
    "compat": "the strategy without a coordinator is v1.ParameterServerStrategy",
    "estimator": "write model.fit(...), or a step with a GradientTape",
    "experimental_set_strategy": "enter strategy.scope()",
    "function": "schedule takes Python functions; numbers are computed by kernels",
    "keras": "layers, models, optimizers, losses, metrics and callbacks are in pstrain itself",
    "train": _HERE,
}
COORDINATOR: Final = dict.fromkeys(("ClusterCoordinator", "RemoteValue"), _HERE)
CALLBACKS: Final = {
    "BackupAndRestore": "write Checkpoint(directory), which goes on after any end of the program",
    "History": "fit returns it",
    "LambdaCallback": "write a subclass of Callback",
    "ModelCheckpoint": "write Checkpoint(directory)",
    "ProgbarLogger": "write ProgressBar(verbose), or fit(verbose=...)",
    "RemoteMonitor": "write a subclass of Callback",
    "TerminateOnNaN": "write a subclass of Callback that sets stop_training where loss is NaN",
}
_TORCH: Final = "pstrain.torch.Layer(module) takes torch's"
_SCHEMA: Final = "a FeatureSchema says what a model reads, and its Category how"
LAYERS: Final = {
    "Activation": 'Dense takes activation="relu" and "sigmoid"',
    "BatchNormalization": _TORCH,
    "CategoryEncoding": _SCHEMA,
    "Concatenate": "write layers.concatenate(...)",
    "Discretization": _SCHEMA,
    "Dropout": _TORCH,
    "Flatten": "write array.reshape(len(array), -1)",
    "Hashing": "Category(buckets) hashes a column",
    "Input": _SCHEMA,
    "InputLayer": _SCHEMA,
    "LayerNormalization": _TORCH,
    "Normalization": _SCHEMA,
    "TextVectorization": "map strings to lists of words; StringLookup makes ids of them",
}
LAYER: Final = {
    "add_weight": "write self.kernel = pstrain.Variable(value, name=...) in __init__",
    "call": "write layer(inputs); a layer of your own computes in forward(values, inputs)",
    "get_weights": "write [variable.numpy() for variable in layer.saved_variables]",
    "non_trainable_variables": "those of saved_variables that are not trainable",
    "set_weights": "write variable.assign(value) for each of layer.saved_variables",
    "trainable_weights": "write trainable_variables",
}
_ONE_LOSS: Final = "BinaryCrossentropy is the only loss; pstrain.torch takes modules with others"
LOSSES: Final = dict.fromkeys(
    (
        "CategoricalCrossentropy",
        "Loss",
        "MeanAbsoluteError",
        "MeanSquaredError",
        "SparseCategoricalCrossentropy",
    ),
    _ONE_LOSS,
) | {
    "Reduction": 'write BinaryCrossentropy(reduction="none"), or "mean"',
    "binary_crossentropy": "write BinaryCrossentropy()(labels, probabilities)",
}
_OWN: Final = "write a subclass of Metric, whose state is an int64 array that adds up"
METRICS: Final = dict.fromkeys(
    (
        "CategoricalAccuracy",
        "F1Score",
        "MeanAbsoluteError",
        "MeanSquaredError",
        "MeanTensor",
        "Precision",
        "Recall",
        "RootMeanSquaredError",
        "SparseCategoricalAccuracy",
        "Sum",
        "TopKCategoricalAccuracy",
    ),
    _OWN,
) | {
    "BinaryAccuracy": "write Accuracy()",
    "BinaryCrossentropy": "write LogLoss()",
}
OPTIMIZERS: Final = {
    "AdamW": "write Adam(l2=...)",
    "experimental": "optimizers are in pstrain.optimizers itself",
    "legacy": "optimizers are in pstrain.optimizers itself",
}
_BY_SIZE: Final = "write uniform(-limit, limit) or normal(0, stddev), with numbers of your own"
INITIALIZERS: Final = {
    "Constant": "write constant(value)",
    "GlorotNormal": _BY_SIZE,
    "GlorotUniform": "write glorot_uniform(fan_in, fan_out)",
    "HeNormal": _BY_SIZE,
    "HeUniform": _BY_SIZE,
    "Initializer": "write a function of shard_info, and give it to Variable with shape=",
    "Ones": "write ones()",
    "RandomNormal": "write normal(mean, stddev)",
    "RandomUniform": "write uniform(low, high)",
    "TruncatedNormal": "write truncated_normal(mean, stddev)",
    "Zeros": "write zeros()",
}
MODELS: Final = {
    "Sequential": "pstrain.torch.Model(schema, module) takes any torch module",
    "clone_model": "write from_config(model.get_config())",
    "load_model": "write from_config(config), then model.load_weights(path)",
    "model_from_json": "write from_config(config)",
}
_LOOP: Final = "write a step with a GradientTape"
MODEL: Final = {
    "add": "layers are those of its class; pstrain.torch.Model takes any torch module",
    "distribute_strategy": "write strategy",
    "export": "write model.save_weights(path), and keep model.get_config()",
    "fit_generator": "write fit(Dataset.from_generator(...))",
    "get_layer": "look into model.layers",
    "metrics_names": "metrics have names: [metric.name for metric in model.metrics]",
    "save": "write model.save_weights(path), and keep model.get_config()",
    "test_on_batch": "write evaluate(...)",
    "to_json": "get_config() is made of what JSON has",
    "train_on_batch": _LOOP,
    "train_step": _LOOP,
}
CHECKPOINT_OBJECT: Final = {
    "read": "write restore(path)",
    "save_counter": "the name of a checkpoint, as save() returns it, ends with its number",
    "write": "write save(directory)",
}
_OPTIONS: Final = "parameter servers write and read files themselves: leave it out"
SAVE_OF_CHECKPOINT: Final = {
    "file_prefix": "write directory=, in which each checkpoint is a folder of its own",
    "options": _OPTIONS,
}
RESTORE_OF_CHECKPOINT: Final = {"save_path": "write path=", "options": _OPTIONS}
_READ: Final = "write numpy(), or read_value()"
_ROWS_OF: Final = "write scatter_add and its like, which take the numbers of rows"
NEW_TAPE: Final = {
    "persistent": "each tape tells gradients any number of times: leave it out",
    "watch_accessed_variables": "make what is not to be trained with trainable=False",
}
GRADIENT: Final = {
    "output_gradients": "give np.sum(target * output_gradients) as the loss",
    "unconnected_gradients": "it is None where the loss does not depend on a variable",
}
_SCALAR_ONLY: Final = "gradients are those of a scalar: take one of np.sum(...) at a time"
TAPE: Final = {
    "batch_jacobian": _SCALAR_ONLY,
    "jacobian": _SCALAR_ONLY,
    "reset": "make another one",
    "stop_recording": "tensor.numpy() is a constant",
    "watch": "trainable variables of float32 are watched by themselves",
    "watched_variables": "gradients(loss) lists those that the loss depends on",
}
VARIABLE: Final = {
    "assign_mul": "write assign(variable * ...)",
    "count_up_to": "write assign_add(1)",
    "eval": _READ,
    "gather_nd": "write sparse_read(ids), or variable[...]",
    "get_shape": "write shape, a tuple",
    "initialized_value": _READ,
    "is_initialized": "it has values from the start",
    "load": "write assign(value)",
    "scatter_nd_add": _ROWS_OF,
    "scatter_nd_sub": _ROWS_OF,
    "scatter_nd_update": _ROWS_OF,
    "value": _READ,
}
_ROW_NUMBERS: Final = "write ids="
CHANGE_OF_VARIABLE: Final = {
    "indices": _ROW_NUMBERS,
    "name": "changes have no names",
    "read_value": "the variable is returned, and read where its value is used: leave it out",
    "sparse_delta": "give IndexedSlices(rows, ids) first, without a name; or ids and rows",
    "updates": "write rows=",
    "use_locking": "a change is always made whole: leave it out",
}
READ_OF_VARIABLE: Final = {"indices": _ROW_NUMBERS, "name": "reads have no names"}
NEW_VARIABLE: Final = {
    "aggregation": "a trainer has one replica, and rounds (sync) take the mean of gradients",
    "caching_device": "each step reads anew",
    "constraint": "assign what it gives after a step",
    "synchronization": "each read is of the parameter servers",
    "validate_shape": "shapes are always checked",
}
_AHEAD: Final = "trainers read ahead into their own memory: leave it out"
INPUT_OPTIONS: Final = {
    "experimental_fetch_to_device": _AHEAD,
    "experimental_per_replica_buffer_size": _AHEAD,
    "experimental_place_dataset_on_device": _AHEAD,
    "experimental_replication_mode": "each trainer has one pipeline and one replica: leave it out",
}
_PLACED: Final = "values stay where the step runs; variables are on parameter servers"
_BY_SPEC: Final = "the cluster is as its resolver says, and has no sessions to configure"
STRATEGY: Final = {
    "configure": _BY_SPEC,
    "experimental_assign_to_logical_device": _PLACED,
    "experimental_make_numpy_dataset": "write dataservice.Dataset.from_numpy(arrays)",
    "experimental_replicate_to_logical_devices": _PLACED,
    "experimental_run_v2": "write run(fn, args, kwargs)",
    "experimental_split_to_logical_devices": _PLACED,
    "make_dataset_iterator": "write iter(experimental_distribute_dataset(dataset))",
    "make_input_fn_iterator": "write iter(distribute_datasets_from_function(fn))",
    "unwrap": "write experimental_local_results(value)",
    "update_config_proto": _BY_SPEC,
}


def no_attribute(what: str, name: str, remedies: Mapping[str, str], owner: Any) -> NoReturn:
    """Raises the AttributeError of ``what``, which has no ``name``."""
    hint = f": {remedies[name]}" if name in remedies else ""
    raise AttributeError(f"{what} has no attribute {name!r}{hint}", name=name, obj=owner)


def module_getattr(module: str, remedies: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a module that tells what stands for these names."""

    def __getattr__(name: str) -> NoReturn:
        no_attribute(f"module {module!r}", name, remedies, sys.modules.get(module))

    return __getattr__


class Telling:
    """Base of classes that tell what stands for the names in ``_foreign``."""

    _foreign: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # checkers shall go on to report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute(f"{type(self).__name__!r} object", name, self._foreign, self)


def instead_of(what: str, remedies: Mapping[str, str]) -> Callable[[Called], Called]:
    """Has a callable, which is called ``what``, say what to write instead of these arguments."""

    def tell(function: Called) -> Called:
        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            for name in arguments:
                if name in remedies:
                    raise InvalidTypeError(f"{what} takes no argument {name!r}: {remedies[name]}")
            return function(*args, **arguments)

        return cast("Called", call)

    return tell
