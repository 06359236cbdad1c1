"""Data sets by name, and the user's own: records that `psac.make_private` can draw from."""

from psac.data.records import TensorRecords, ImageFiles, TextRecords
from psac.data.catalogue import fetch, info, load, names
from psac.data.folders import from_folder
from psac.data.tables import from_csv, from_parquet, from_table
from psac.data.released import Budget
from psac.data.arrays import from_npz
from psac.data.entry import DataNotFound, Info
from psac.data.sources import Progress

__all__ = [
    "TensorRecords",
    "ImageFiles",
    "TextRecords",
    "fetch",
    "info",
    "load",
    "names",
    "from_folder",
    "from_table",
    "from_csv",
    "from_parquet",
    "Budget",
    "from_npz",
    "DataNotFound",
    "Info",
    "Progress",
]
