"""Functions over several datasets, under the names that tf.data.experimental gives them."""

from __future__ import annotations

from dataservice.dataset.dataset import Dataset

sample_from_datasets = Dataset.sample_from_datasets
choose_from_datasets = Dataset.choose_from_datasets
