"""Names that programs written for TensorFlow and Keras look up, and what to use here instead.

Holds only texts of errors, and the hooks that raise them. Invariant: no name listed here is one
that the module or class has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from dataservice.runtime.missing_names import no_name as no_name

OPTIMIZER_OBJECT: Final = {
    "build": "slots are made beside the variables, by the first step",
    "compute_gradients": "write tape.gradients(loss)",
    "apply": "write apply_gradients(zip(gradients, variables))",
    "get_slot": "slots are beside the variables, and in checkpoints",
    "lr": "write learning_rate",
    "minimize": "write a step with a GradientTape, and apply_gradients(tape.gradients(loss))",
    "get_weights": "write Checkpoint(optimizer=optimizer).save(directory)",
    "set_weights": "write Checkpoint(optimizer=optimizer).restore(path)",
    "weights": "slots are beside the variables; the counter is iterations",
}
_HERE: Final = "its names are here, in pstrain itself"
_NUMPY: Final = "NumPy's functions take tensors and variables: np.mean(losses), np.tanh(tensor)"
_DTYPE: Final = "types are NumPy's: np.float32, or its name as text"
_BY_HAND: Final = "write SimpleClusterResolver(ClusterSpec({...}), task_type=, task_id=)"
_EAGER: Final = "steps are Python, and run as they are written"
_LISTS: Final = "rows of several values are a column of lists: Category(..., pooling=)"
_SCHEMA: Final = "a FeatureSchema says what a model reads, and its Category how"
_PER_WORKER: Final = (
    "ClusterCoordinator.create_per_worker_dataset(...) makes what each trainer has one of"
)
_IN_STEP: Final = "ParameterServerStrategy(..., consistency=consistency.sync()) trains in step"
PSTRAIN: Final = {
    **dict.fromkeys(
        (
            "abs",
            "add",
            "argmax",
            "cast",
            "clip_by_value",
            "concat",
            "constant",
            "convert_to_tensor",
            "divide",
            "equal",
            "exp",
            "expand_dims",
            "gather",
            "greater",
            "identity",
            "less",
            "linalg",
            "log",
            "math",
            "matmul",
            "maximum",
            "minimum",
            "multiply",
            "nn",
            "one_hot",
            "ones",
            "ones_like",
            "pad",
            "pow",
            "range",
            "rank",
            "reduce_all",
            "reduce_any",
            "reduce_max",
            "reduce_mean",
            "reduce_min",
            "reduce_prod",
            "reduce_std",
            "reduce_sum",
            "reshape",
            "round",
            "shape",
            "sigmoid",
            "size",
            "split",
            "sqrt",
            "square",
            "squeeze",
            "stack",
            "strings",
            "subtract",
            "tanh",
            "tile",
            "transpose",
            "unique",
            "unstack",
            "where",
            "zeros",
            "zeros_like",
        ),
        _NUMPY,
    ),
    **dict.fromkeys(("bool", "float32", "float64", "int32", "int64", "string"), _DTYPE),
    **dict.fromkeys(
        (
            "ClusterResolver",
            "GCEClusterResolver",
            "SageMakerClusterResolver",
            "TPUClusterResolver",
        ),
        _BY_HAND,
    ),
    "Model": "models are in pstrain.models; pstrain.torch.Model takes any torch module",
    "Graph": _EAGER,
    "backend": "write optimizer.learning_rate = rate, variable.assign(value), variable.numpy()",
    "RaggedTensor": _LISTS,
    "Session": _EAGER,
    "SparseTensor": _LISTS,
    "TensorSpec": "the schema of a dataset is Arrow's: pa.schema(...)",
    "clip_by_global_norm": "write global_clipnorm= of the optimizer",
    "clip_by_norm": "write clipnorm= of the optimizer",
    "cluster_resolver": _HERE,
    "device": "strategy.scope() places variables; steps run on trainers",
    "executing_eagerly": _EAGER,
    "feature_column": _SCHEMA,
    "io": "files are read by dataservice: ds.Dataset.from_tfrecord, from_csv, from_parquet",
    "lookup": "write layers.StringLookup(vocabulary=...), or IntegerLookup",
    "name_scope": "write name= of the variables and layers",
    "placeholder": _EAGER,
    "print": "steps are Python: write print(...)",
    "ragged": _LISTS,
    "sparse": _LISTS,
    "stop_gradient": "tensor.numpy() is a constant",
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
    "PerWorkerValue": _PER_WORKER,
    "PerWorkerValues": _PER_WORKER,
    "PreemptionCheckpointHandler": "callbacks.Checkpoint(directory) goes on after any end",
    "RunOptions": "strategy.run takes none",
    "SidecarEvaluatorModelExport": "SidecarEvaluator(results_dir=) writes best.json of the best",
    "StaticHashTable": "write layers.StringLookup(vocabulary=...), or IntegerLookup",
    "Strategy": "write ParameterServerStrategy(cluster_resolver)",
    "Sequential": "models are in pstrain.models; pstrain.torch.Model takes any torch module",
    "TF_ConfigClusterResolver": "write TFConfigClusterResolver",
    "data": "write import dataservice as ds; datasets are ds.Dataset",
    "distribute": _HERE,
    "experimental": _HERE,
    "TPUStrategy": _IN_STEP,
    "compat": "the strategy without a coordinator is v1.ParameterServerStrategy",
    "estimator": "write model.fit(...), or a step with a GradientTape",
    "experimental_set_strategy": "enter strategy.scope()",
    "random": "seeds are arguments: seed= of models, initializers and Dataset.shuffle",
    "function": "schedule takes Python functions; numbers are computed by kernels",
    "keras": "layers, models, optimizers, losses, metrics and callbacks are in pstrain itself",
    "train": _HERE,
}
COORDINATOR: Final = dict.fromkeys(("ClusterCoordinator", "RemoteValue"), _HERE)
CALLBACKS: Final = {
    "BackupAndRestore": "write Checkpoint(directory), which goes on after any end of the program",
    "History": "fit returns it",
    "ModelCheckpoint": "write Checkpoint(directory), with monitor= and save_best_only= as in Keras",
    "ProgbarLogger": "write ProgressBar(verbose), or fit(verbose=...)",
    "RemoteMonitor": "write a subclass of Callback",
}
_WITH_OPERATORS: Final = "tensors have operators, and take NumPy's functions: a + b, a * b"
_TORCH: Final = "pstrain.torch.Layer(module) takes torch's"
_SHAPES: Final = "shapes are those of its variables: [each.shape for each in layer.weights]"
LAYERS: Final = {
    "Add": _WITH_OPERATORS,
    "Activation": 'Dense takes activation="relu" and "sigmoid"',
    "BatchNormalization": _TORCH,
    "CategoryEncoding": _SCHEMA,
    "Concatenate": "write layers.concatenate(...)",
    "Discretization": _SCHEMA,
    "Dropout": _TORCH,
    "Dot": "write np.sum(a * b, axis=1, keepdims=True)",
    "DenseFeatures": _SCHEMA,
    "Flatten": "write array.reshape(len(array), -1)",
    "GRU": _TORCH,
    "HashedCrossing": "make a column of both, by with_column, and hash it: Category(buckets)",
    "Hashing": "Category(buckets) hashes a column",
    "Input": _SCHEMA,
    "InputLayer": _SCHEMA,
    "LSTM": _TORCH,
    "Lambda": _WITH_OPERATORS,
    "LayerNormalization": _TORCH,
    "LeakyReLU": _TORCH,
    "MultiHeadAttention": _TORCH,
    "Multiply": _WITH_OPERATORS,
    "Normalization": _SCHEMA,
    "ReLU": 'Dense takes activation="relu"',
    "Rescaling": _SCHEMA,
    "Softmax": _TORCH,
    "Subtract": _WITH_OPERATORS,
    "TextVectorization": "map strings to lists of words; StringLookup makes ids of them",
}
_OWN_LOSS: Final = "write a step with a GradientTape, and add it to the loss there"
LAYER: Final = {
    "add_loss": _OWN_LOSS,
    "add_weight": "write self.kernel = pstrain.Variable(value, name=...) in __init__",
    "call": "write layer(inputs); a layer of your own computes in forward(values, inputs)",
    "compute_output_shape": _SHAPES,
    "get_config": "a model has one, of which models.from_config() makes it again",
    "input_shape": _SHAPES,
    "losses": _OWN_LOSS,
    "output_shape": _SHAPES,
}
_OTHER_LOSS: Final = (
    "under a GradientTape write it with NumPy's functions, as np.mean(np.log(np.cosh(predictions "
    "- labels))), or take a module of torch"
)
_FUNCTION: Final = "write {}()(labels, predictions)"
LOSSES: Final = dict.fromkeys(
    (
        "BinaryFocalCrossentropy",
        "CategoricalCrossentropy",
        "CosineSimilarity",
        "Hinge",
        "KLDivergence",
        "LogCosh",
        "Loss",
        "MeanAbsolutePercentageError",
        "MeanSquaredLogarithmicError",
        "Poisson",
        "SparseCategoricalCrossentropy",
    ),
    _OTHER_LOSS,
) | {
    **dict.fromkeys(("mean_squared_error", "mse", "MSE"), _FUNCTION.format("MeanSquaredError")),
    **dict.fromkeys(("mean_absolute_error", "mae", "MAE"), _FUNCTION.format("MeanAbsoluteError")),
    "get": 'compile takes names: compile(loss="mse")',
    "huber": _FUNCTION.format("Huber"),
    "Reduction": 'write BinaryCrossentropy(reduction="none"), or "mean"',
    "binary_crossentropy": "write BinaryCrossentropy()(labels, probabilities)",
}
_OWN: Final = "write a subclass of Metric, whose state is an int64 array that adds up"
METRICS: Final = dict.fromkeys(
    (
        "CategoricalAccuracy",
        "CosineSimilarity",
        "F1Score",
        "FalseNegatives",
        "FalsePositives",
        "LogCoshError",
        "MeanAbsolutePercentageError",
        "MeanSquaredLogarithmicError",
        "MeanTensor",
        "Poisson",
        "SparseCategoricalAccuracy",
        "Sum",
        "TopKCategoricalAccuracy",
        "TrueNegatives",
        "TruePositives",
    ),
    _OWN,
) | {
    "BinaryAccuracy": "write Accuracy()",
    "get": 'compile takes names: compile(metrics=["auc"])',
    "BinaryCrossentropy": "write LogLoss()",
}
_ANOTHER: Final = "write Adam, or another one that is here"
OPTIMIZERS: Final = {
    "get": 'compile takes names: compile("adam")',
    "Adadelta": _ANOTHER,
    "AdamW": "write Adam(l2=...)",
    "Adamax": _ANOTHER,
    "Lion": _ANOTHER,
    "Nadam": _ANOTHER,
    "experimental": "optimizers are in pstrain.optimizers itself",
    "legacy": "optimizers are in pstrain.optimizers itself",
}
_BY_SIZE: Final = "write uniform(-limit, limit) or normal(0, stddev), with numbers of your own"
INITIALIZERS: Final = {
    "Constant": "write constant(value)",
    **dict.fromkeys(
        (
            "GlorotNormal",
            "HeNormal",
            "HeUniform",
            "LecunNormal",
            "LecunUniform",
            "VarianceScaling",
            "glorot_normal",
            "he_normal",
            "he_uniform",
            "lecun_normal",
            "lecun_uniform",
            "variance_scaling",
        ),
        _BY_SIZE,
    ),
    "GlorotUniform": "write glorot_uniform(fan_in, fan_out)",
    "Initializer": "write a function of shard_info, and give it to Variable with shape=",
    "Ones": "write ones()",
    "RandomNormal": "write normal(mean, stddev)",
    "RandomUniform": "write uniform(low, high)",
    "random_normal": "write normal(mean, stddev)",
    "random_uniform": "write uniform(low, high)",
    "TruncatedNormal": "write truncated_normal(mean, stddev)",
    "Zeros": "write zeros()",
}
MODELS: Final = {
    "Sequential": "pstrain.torch.Model(schema, module) takes any torch module",
    "clone_model": "write from_config(model.get_config())",
    "load": "write load_model(path)",
    "model_from_json": "write from_config(config)",
}
_LOOP: Final = "write a step with a GradientTape"
_FRESH: Final = "each epoch, and each evaluate, begins with metrics that have seen nothing"
_NO_SAMPLE: Final = "model.schema says which columns it reads; it gives a logit for each row"
MODEL: Final = {
    "add": "layers are those of its class; pstrain.torch.Model takes any torch module",
    "add_loss": _OWN_LOSS,
    "add_metric": "write compile(metrics=[...])",
    "build": "layers are made with their sizes, in __init__",
    "call": "write model(batch); a model of your own computes in compute(values, features)",
    "compiled_metrics": "write metrics",
    "compute_loss": _LOOP,
    "distribute_strategy": "write strategy",
    "export": "write model.save_weights(path); models.load_model(path) reads it",
    "fit_generator": "write fit(Dataset.from_generator(...))",
    "history": "fit returns it",
    "input": _NO_SAMPLE,
    "input_shape": _NO_SAMPLE,
    "inputs": _NO_SAMPLE,
    "losses": _OWN_LOSS,
    "make_train_function": _LOOP,
    "metrics_names": "metrics have names: [metric.name for metric in model.metrics]",
    "output": _NO_SAMPLE,
    "output_shape": _NO_SAMPLE,
    "outputs": _NO_SAMPLE,
    "predict_step": "write predict_on_batch(batch)",
    "reset_metrics": _FRESH,
    "reset_states": _FRESH,
    "run_eagerly": "steps always run as they are written",
    "save": "write model.save_weights(path); models.load_model(path) reads it",
    "test_on_batch": "write evaluate(...)",
    "test_step": "write evaluate(...)",
    "to_json": "get_config() is made of what JSON has",
    "train_on_batch": _LOOP,
    "train_step": _LOOP,
}
CHECKPOINT_OBJECT: Final = {
    "read": "write restore(path)",
    "save_counter": "the name of a checkpoint, as save() returns it, ends with its number",
    "write": "write save(directory)",
}
_READ: Final = "write numpy(), or read_value()"
_ROWS_OF: Final = "write scatter_add and its like, which take the numbers of rows"
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
    """Raises AttributeError for attribute ``name`` of ``what``, with the remedy if there is one."""
    hint = f": {remedies[name]}" if name in remedies else ""
    raise AttributeError(f"{what} has no attribute {name!r}{hint}", name=name, obj=owner)


def module_getattr(module: str, remedies: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Returns a ``__getattr__`` for a module, whose errors name the remedies for these names."""

    def __getattr__(name: str) -> NoReturn:
        no_name(module, name, remedies.get(name), sys._getframe(1))

    return __getattr__


class Hinting:
    """A base class whose AttributeErrors name the remedies for the names in ``_remedies``."""

    _remedies: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # type checkers still report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute(f"{type(self).__name__!r} object", name, self._remedies, self)
