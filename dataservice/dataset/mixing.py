"""Functions of several datasets, under their names in tf.data.experimental."""

from __future__ import annotations

from dataservice.dataset.dataset import Dataset

sample_from_datasets = Dataset.sample_from_datasets
choose_from_datasets = Dataset.choose_from_datasets
