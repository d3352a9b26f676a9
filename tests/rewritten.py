"""Records of a cell that a test has changed: written again as another tool would, unsigned."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from study.cell.parts import INDEX


def unsigned(cell: Path, judge: str = "") -> None:
    """Take the signatures from all records of ``cell``, and name its acting judge ``judge``."""
    for path in [*cell.rglob("step-*.parquet"), *cell.rglob("steps-*.parquet")]:
        file = pq.ParquetFile(path)
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
        index = {key: text for key, text in (file.metadata.metadata or {}).items() if key == INDEX}
        with pq.ParquetWriter(path, groups[0].schema.remove_metadata()) as writer:
            for group in groups:
                rows = renamed(group, judge) if judge and "role" in group.column_names else group
                writer.write_table(rows.replace_schema_metadata(None))
            writer.add_key_value_metadata(index)


def renamed(verdicts: pa.Table, judge: str) -> pa.Table:
    """Verdicts whose acting judge is called ``judge``."""
    acting = pc.equal(verdicts["role"], "acting")
    names = pc.if_else(acting, judge, verdicts["judge"].cast(pa.string()))
    return verdicts.set_column(verdicts.column_names.index("judge"), "judge", names)
