"""Federations from the user's own tables, folders and datasets."""

from coterie.data.tables.build import Prepared, Table
from coterie.data.tables.construct import (
    federation_from_datasets,
    federation_from_folder,
    federation_from_table,
)
from coterie.data.tables.describe import describe

__all__ = [
    "Prepared",
    "Table",
    "describe",
    "federation_from_datasets",
    "federation_from_folder",
    "federation_from_table",
]
