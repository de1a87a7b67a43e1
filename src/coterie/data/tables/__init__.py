"""Federations from the user's own tables, folders and datasets."""

from coterie.data.tables.constructors import (
    federation_from_datasets,
    federation_from_folder,
    federation_from_table,
)
from coterie.data.tables.describe import describe
from coterie.data.tables.table import PreparedTable, Table

__all__ = [
    "PreparedTable",
    "Table",
    "describe",
    "federation_from_datasets",
    "federation_from_folder",
    "federation_from_table",
]
