"""A line of a board and the columns that it is read by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from decodehub.core.records import Metric

from .checks import label
from .data import Entry, Slice

NOT_DECLARED = "none declared"
BCS_TABLE6 = (("Question MAE", "q_mae"), ("Question r", "q_r"), ("Question rho", "q_rho"), ("T-PAS MAE", "pas_mae"), ("T-PAS r", "pas_r"), ("T-SAS MAE", "sas_mae"), ("T-SAS r", "sas_r"))  # fmt: skip


class Column(NamedTuple):
    """A number that is shown: its heading, and name and slice in a record."""

    title: str
    name: str
    slice: Slice = ()


@dataclass(frozen=True, eq=False)
class Row:
    """A line of a board.

    Attributes:
        key: unique; the record's key, with what part of the record it is, or that of a published row.
        name: of the model or method. entry: the record, None for a published row.
        numbers: by name and slice. extra: the part of the slice that is the row's own.
        traits: values of the row filters. group: what the row may be ranked and compared with; "" for published rows.
        group_title: of `group`, in words. source, note: where a published row is from, and what to know of it.
        grid: the subjects and seeds that its numbers are over, of EEG-EditBench; () where a check says what they are over.
    """

    key: str
    name: str
    entry: Entry | None
    numbers: Mapping[tuple[str, Slice], Metric]
    extra: Slice = ()
    traits: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    group_title: str = ""
    source: str = ""
    note: str = ""
    grid: tuple[tuple[int, ...], ...] = ()

    def metric(self, column: Column) -> Metric | None:
        """The row's number in a column, None where it has none."""
        return self.numbers.get((column.name, tuple(sorted((*column.slice, *self.extra)))))

    def label(self, column: Column) -> str:
        """Key of the row's number in a check."""
        return label(column.name, (*column.slice, *self.extra))
