"""A local table of Arrow's, Parquet or Arrow IPC, of which the column of text alone is read.

Files may declare features of `datasets` in their metadata, such as images, which it fetches when it
reads any column. So the metadata are not looked at, and no feature is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

BATCH = 1000  # rows read at a time


class ColumnFile:
    """The one split of a table in a file, open for reading from any row on."""

    def __init__(self, path: str, kind: str) -> None:
        self.path, self.kind = path, kind

    def schema(self) -> dict[str, Any]:
        """Columns and their types, as the file stores them."""
        return {field.name: field.type for field in self._opened().schema_arrow}

    def texts(self, column: str, first: int) -> Iterator[tuple[Sequence[Any], int]]:
        """Values of a column from row `first` on, a batch at a time, and the row after each."""
        row = 0
        for batch in self._opened().iter_batches(batch_size=BATCH, columns=[column]):
            row += batch.num_rows
            if row > first:
                values = batch.column(batch.schema.names.index(column)).slice(
                    max(first - row + batch.num_rows, 0)
                )
                yield values.to_pylist(), row

    def _opened(self) -> Any:
        if self.kind == "parquet":
            import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

            return pyarrow.parquet.ParquetFile(self.path)
        return _IpcFile(self.path)


class _IpcFile:
    """An Arrow stream or file, as `ParquetFile` is one."""

    def __init__(self, path: str) -> None:
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

        self._file = pa.OSFile(path)
        try:
            self._reader = pa.ipc.open_stream(self._file)
            self._batches = iter(self._reader)
        except (OSError, pa.ArrowInvalid):
            self._file.seek(0)
            self._reader = pa.ipc.open_file(self._file)
            self._batches = map(self._reader.get_batch, range(self._reader.num_record_batches))
        self.schema_arrow = self._reader.schema

    def iter_batches(self, batch_size: int, columns: Sequence[str]) -> Iterator[Any]:
        """Batches of some columns, of at most so many rows."""
        for batch in self._batches:
            batch.validate(full=True)
            chosen = batch.select(list(columns))
            for first in range(0, batch.num_rows, batch_size):
                yield chosen.slice(first, batch_size)


def is_text(kind: Any) -> bool:
    """True for a type of Arrow's whose values are texts."""
    import pyarrow.types as types  # type: ignore[import-untyped, unused-ignore]

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
