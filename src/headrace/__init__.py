"""headrace: dataloader-first streaming ingestion for training recommender models.

The usual way in is :class:`DataLoader` with a :class:`Schema`, and :class:`EmbeddingStage` on the other side. The nodes
are here too, for those who compose a loader of their own.
"""

from headrace._version import __version__
from headrace.embed.checkpoint import SavedRun, load_run, save_run
from headrace.embed.clipping import clip_grad_norm_
from headrace.embed.dense_gradients import average_gradients
from headrace.embed.initializer import Constant, Normal, Uniform
from headrace.embed.row_database import RowDatabase
from headrace.embed.run_folder import CheckpointError
from headrace.embed.stage import EmbeddingStage
from headrace.embed.table_file import export_table, import_rows, import_table
from headrace.formats.array_reader import ArrayFiles
from headrace.formats.arrow_reader import ArrowFiles
from headrace.formats.avazu import avazu_schema
from headrace.formats.bad_records import BadRecords
from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.datasets import open_dataset
from headrace.formats.delimited_format import TextField, TextFormat
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.errors import (
    BadRecordError,
    BadRecordLimitError,
    ColumnMismatchError,
    CorruptShardError,
    ManifestError,
)
from headrace.formats.generate.generate import generate
from headrace.formats.manifest import read_manifest
from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Dense, Label, Schema, SchemaError, Sparse, Table
from headrace.formats.taobao import taobao_schema
from headrace.indexer.dit import DIT
from headrace.indexer.exchange.communicator import Communicator, connect
from headrace.indexer.indexed import ABSENT, IdColumn, IndexTable
from headrace.ingest.adapters.pipelines import from_datapipe, from_webdataset
from headrace.ingest.adapters.rows_from import RowsFrom
from headrace.ingest.batch import Batch, BatchGroup
from headrace.ingest.data_loader import DataLoader
from headrace.ingest.engine.errors import NodeClosedError
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.parallel_map import ParallelMap
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.hot_split import SplitBatch
from headrace.ingest.nodes.batch_rows import BatchRows
from headrace.ingest.nodes.index import Index
from headrace.ingest.nodes.map_rows import Map
from headrace.ingest.nodes.plan_window import PlanWindow
from headrace.ingest.nodes.read_rows import ReadRows
from headrace.ingest.nodes.shuffle import Shuffle
from headrace.ingest.nodes.to_batch import ToBatch
from headrace.ingest.plan.capacity import CapacityError
from headrace.ingest.plan.planner import WindowPlanner
from headrace.ingest.plan.verifier import PlanVerifier
from headrace.ingest.plan.violations import PlanViolationError
from headrace.ingest.step_plan import StepPlan

__all__ = [
    "ABSENT",
    "ArrayFiles",
    "ArrowFiles",
    "BadRecordError",
    "BadRecordLimitError",
    "BadRecords",
    "Batch",
    "BatchGroup",
    "BatchRows",
    "CapacityError",
    "CheckpointError",
    "ColumnMismatchError",
    "Communicator",
    "Constant",
    "CorruptShardError",
    "CriteoFiles",
    "DIT",
    "DataLoader",
    "DelimitedFiles",
    "Dense",
    "EmbeddingStage",
    "IdColumn",
    "Index",
    "IndexTable",
    "Label",
    "ManifestError",
    "Map",
    "Node",
    "NodeClosedError",
    "Normal",
    "ParallelMap",
    "PlanVerifier",
    "PlanViolationError",
    "PlanWindow",
    "Prefetch",
    "ReadRows",
    "RowBlock",
    "RowDatabase",
    "RowsFrom",
    "SavedRun",
    "Schema",
    "SchemaError",
    "Shuffle",
    "Source",
    "SourceRange",
    "Sparse",
    "SplitBatch",
    "StepPlan",
    "Table",
    "TextField",
    "TextFormat",
    "ToBatch",
    "Uniform",
    "WindowPlanner",
    "__version__",
    "avazu_schema",
    "average_gradients",
    "clip_grad_norm_",
    "connect",
    "criteo_schema",
    "export_table",
    "from_datapipe",
    "from_webdataset",
    "generate",
    "import_rows",
    "import_table",
    "load_run",
    "open_dataset",
    "read_manifest",
    "save_run",
    "taobao_schema",
]
