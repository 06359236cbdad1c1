"""Named data sets and your own data, as records for `psac.make_private`.

catalogue  the data sets by name; sets/ has a file for each, entry its facts
store      the cache; sources, archives and files are how data get into it and out of it
records    the three kinds of data sets
tables/    your own tables; folders of images and arrays are beside it
classes    the classes of your own data: stated, or read off the records if you allow it
"""

from psac.app.data.records import TensorRecords, ImageFiles, TextRecords
from psac.app.data.catalogue import fetch, info, load, names
from psac.app.data.folders import from_folder
from psac.app.data.tables.loading import from_csv, from_parquet, from_table
from psac.app.data.tables.private_release import Budget
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
