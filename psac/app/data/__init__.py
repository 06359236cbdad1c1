"""Data sets by name, and the user's own: records that `psac.make_private` can draw from."""

from psac.app.data.records import TensorRecords, ImageFiles, TextRecords
from psac.app.data.catalogue import fetch, info, load, names
from psac.app.data.folders import from_folder
from psac.app.data.tables import from_csv, from_parquet, from_table
from psac.app.data.released import Budget
from psac.app.data.arrays import from_npz
from psac.app.data.entry import DataNotFound, Info
from psac.app.data.sources import Progress

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
