"""Reads parallel text from JSON lines and Parquet: objects and rows whose texts have names."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padir.data.columns import sides
from padir.data.markup import Pairs, unwrapped
from padir.errors import PadirError
from padir.storage.files import parsed_json
from padir.text.lines import LONGEST_LINE, Reader, lines_of, readable, too_long

_HALF = re.compile("[\ud800-\udfff]")  # of a character of UTF-16
_ONE_A_LINE = "write one object a line, with both languages; jq -c '.[]' makes lines of a list"
# Maximum bytes of a column in a row group of Parquet; and of one that has over a hundred times the bytes of its file.
_MOST_BYTES = 1 << 29
_MOST_INFLATED = 1 << 26


def json_lines(file: Reader, path: Path, languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of JSON objects, one a line."""
    for number, line in enumerate(lines_of(file, path), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                record = parsed_json(line, halves=True)
            except json.JSONDecodeError as error:
                raise PadirError(f"{where}: not a JSON object ({error})", remedy=_ONE_A_LINE) from None
            except ValueError as error:
                raise PadirError(f"{where} cannot be read ({error})") from None
            if not isinstance(record, dict):
                raise PadirError(f"{where}: not a JSON object", remedy=_ONE_A_LINE)
            if isinstance(record.get("translation"), dict):
                record = record["translation"]
            source, target = _places(list(record), languages, where)
            values = list(record.values())
            yield _pair((values[source], values[target]), where)


def _places(names: Sequence[str], languages: tuple[str, str], where: str) -> tuple[int, int]:
    """The places of source and target among the names of texts."""
    chosen = sides(names, languages)
    if chosen is None:
        has = f"one text in {languages[0]} and one in {languages[1]}"
        remedy = "rename its keys"
        raise PadirError(f"{where}: expected {has}, got the keys {', '.join(names) or 'none'}", remedy=remedy)
    return chosen


def _pair(values: tuple[Any, Any], where: str) -> tuple[str, str]:
    """The two texts of an object; null is a side without text, and no other value is."""
    source, target = ("" if value is None else value for value in values)
    if not isinstance(source, str) or not isinstance(target, str):
        raise PadirError(f"{where}: expected two texts", got=values, remedy="give strings")
    if max(len(source), len(target)) > LONGEST_LINE:
        raise too_long(where)
    if _HALF.search(source + target):
        raise PadirError(f"{where}: expected whole characters", got=values, remedy="write both halves, or neither")
    return unwrapped(source), unwrapped(target)


def parquet(path: Path, languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of a Parquet file; the columns of other names are not read."""
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as arrow  # pyright: ignore[reportMissingImports]
    except ImportError:
        remedy = "pip install pyarrow, or write the pairs as JSON lines"
        raise PadirError(f"{path} is a Parquet file, which needs the package pyarrow", remedy=remedy) from None
    with readable(str(path), "Parquet"):
        file = arrow.ParquetFile(path)
        columns = {name: name for name in file.schema_arrow.names}
        if "translation" in columns and hasattr(nested := file.schema_arrow.field("translation").type, "names"):
            columns = {name: f"translation.{name}" for name in nested.names}
        places = _places(list(columns), languages, str(path))
        source, target = (list(columns.values())[place] for place in places)
        for group in range(file.num_row_groups):
            _check_row_group(file.metadata.row_group(group), {source, target}, path)
        # As dictionaries, where a text that many rows share stands once.
        file = arrow.ParquetFile(path, read_dictionary=[source, target])
        number = 0
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(row_groups=[group], columns=[source, target]):
                table = pyarrow.Table.from_batches([batch]).flatten()
                for values in zip(table[source], table[target], strict=True):
                    number += 1
                    yield _pair((values[0].as_py(), values[1].as_py()), f"{path}, row {number}")


def _check_row_group(group: Any, names: set[str], path: Path) -> None:
    """Refuses a row group whose columns of these names are not text or take too much memory."""
    columns = [group.column(i) for i in range(group.num_columns)]
    texts = [column for column in columns if column.path_in_schema in names and column.physical_type == "BYTE_ARRAY"]
    sizes = [column.total_uncompressed_size for column in texts]
    most = min(_MOST_BYTES, max(_MOST_INFLATED, 100 * path.stat().st_size))
    if len(sizes) != len(names) or max(sizes) > most:
        expected = f"two columns of text with at most {most:,} bytes in a row group"
        raise PadirError(f"{path}: expected {expected}", got=sizes, remedy="write strings, in smaller row groups")
