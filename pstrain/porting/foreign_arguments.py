"""Arguments that programs written for TensorFlow and Keras pass, and what to write here instead.

Holds only texts of errors; `refuse_arguments` raises them. Invariant: no argument listed here is
one that the callable takes.
"""

from __future__ import annotations

from typing import Final

from dataservice.runtime.refused_arguments import Called as Called
from dataservice.runtime.refused_arguments import refuse_arguments as refuse_arguments

_READING: Final = "the dataset says how it is read: distribute() it to data workers"
FIT: Final = {
    "x": "write data=, a Dataset of batches, a table, DataFrame or dict of arrays, labels included",
    "y": "labels are a column of data=, which the model's schema names (label=)",
    "validation_steps": "write validation_data=dataset.take(n), of so many batches",
    "validation_batch_size": "validation_data in batches of its own size: Dataset.batch(n)",
    "shuffle": "write dataset.shuffle(buffer_size)",
    "workers": _READING,
    "use_multiprocessing": _READING,
    "max_queue_size": _READING,
}
EVALUATE: Final = {name: FIT[name] for name in ("x", "y", "workers")}
PREDICT: Final = {"x": FIT["x"], "workers": _READING}
CALL: Final = {"mask": "lists are as long as they are"}
CALL_OF_LAYER: Final = CALL | {
    "a second input": "several inputs are one tuple, as in layer((x0, x))",
}
_COMPILED: Final = "kernels are compiled always"
COMPILE: Final = {
    "a third argument": "write compile(optimizer, metrics, loss=...)",
    "loss_weights": "a model has one output and one loss; weigh rows by fit(sample_weight=...)",
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
UNIFORM: Final = {"minval": "write low=", "maxval": "write high="}
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
_OPTIONS: Final = "parameter servers write and read files themselves: leave it out"
CHECKPOINT: Final = {
    "filepath": "write directory=, in which each checkpoint is one of its own",
    "keep_checkpoint_max": "write max_to_keep=",
    "save_freq": "write every= (epochs) or every_steps=",
    "save_weights_only": "the model, its optimizer and the data position are saved together",
    "initial_value_threshold": "the first value that is measured is the first best one",
    "options": _OPTIONS,
    "period": "write every=",
    "verbose": "last_path is the newest checkpoint",
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
R2_SCORE: Final = NEW_METRIC | {
    "class_aggregation": "a model has one output for each row",
    "num_regressors": "it is not adjusted: leave it out",
}
PRECISION_RECALL: Final = {
    "thresholds": "write threshold=, a number, and a metric for each",
    "top_k": "answers are by the threshold alone",
    "class_id": _BINARY,
    "dtype": _EXACT,
}
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
}
NEW_LOSS: Final = {
    "name": "a loss has none",
    "dtype": "it is float32",
}
BINARY_CROSSENTROPY: Final = NEW_LOSS | {
    "label_smoothing": _SMOOTH,
    "axis": "the loss is the mean over the batch",
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
SAVE_OF_CHECKPOINT: Final = {
    "file_prefix": "write directory=, in which each checkpoint is a folder of its own",
    "options": _OPTIONS,
}
RESTORE_OF_CHECKPOINT: Final = {"save_path": "write path=", "options": _OPTIONS}
NEW_TAPE: Final = {
    "watch_accessed_variables": "make what is not to be trained with trainable=False",
}
GRADIENT: Final = {
    "output_gradients": "give np.sum(target * output_gradients) as the loss",
    "unconnected_gradients": "it is None where the loss does not depend on a variable",
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
READ_OF_VARIABLE: Final = {
    "indices": _ROW_NUMBERS,
    "max_norm": "scale the rows that it gives by their norms",
    "name": "reads have no names",
    "partition_strategy": "rows come as they are asked for, wherever they are: leave it out",
    "validate_indices": "ids are always checked: leave it out",
}
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
