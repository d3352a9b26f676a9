"""What the fork server imports once, so that a cell starts in milliseconds.

Imports only: no operation, no thread, no connection and no device may be touched before the fork.
"""

import gc

import peft  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401
from trl import GRPOConfig, GRPOTrainer  # noqa: F401

import experiments.train
import experiments.trainer.grpo  # noqa: F401
from experiments.tracking.store import load_mlflow, load_sql_store

load_mlflow()
load_sql_store()
# What was imported stays to the end: no cell looks through it for garbage.
gc.freeze()
