"""What a delimited text file looks like, and how its fields are written: declared, never inferred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.formats.checks import check_flag, check_text, check_type, check_types
from headrace.formats.criteo_lines import Kind
from headrace.formats.date_parts import DatePart
from headrace.formats.schema import SchemaError


@dataclass(frozen=True, kw_only=True)
class TextField:
    """How a column of a schema stands in the file.

    sources
        Names that the file's column may have; its own name when none is given. One may serve several.
    words
        The texts that there are, and the number that each stands for; others are bad records.
    missing
        Texts that mean "missing", besides the empty one.
    whole_floats
        Accept integers with ``.0`` behind them, as pandas writes columns with missing values.
    list_separator
        For a multi-hot column: what stands between its ids. An empty field is a missing list, an empty place between
        two separators a missing id.
    part
        A part of a date that the file writes as an integer, see `date_parts.py`.
    """

    column: str
    sources: tuple[str, ...] = ()
    words: Mapping[str, int] | None = None
    missing: tuple[str, ...] = ()
    whole_floats: bool = False
    list_separator: str = ""
    part: DatePart | None = None

    def __post_init__(self) -> None:
        check_text("column", self.column)
        check_types("sources", self.sources, str, "names of columns in files")
        check_type("words", self.words, (Mapping, type(None)), 'a mapping from text to number, as {"pv": 0}')
        check_types("missing", self.missing, str, "texts")
        check_flag("whole_floats", self.whole_floats)
        check_text("list_separator", self.list_separator)

    @property
    def names(self) -> tuple[str, ...]:
        return self.sources or (self.column,)


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """Lines of fields between `separator` bytes, without quotes.

    With `header` the first line of each file names its columns, in any order; else `columns` does. Columns that the
    schema does not ask for are not looked at. `fields` describes schema columns; one that is not described is found by
    its own name and written plainly, in the way that its type in the schema says (see `criteo_lines.py`). A field
    whose column neither the schema nor the file has is an error (a misspelt one would change nothing), unless
    `spare_fields` says that there may be such, as in the format of a published dataset that has several forms.
    """

    name: str
    separator: str = ","
    header: bool = False
    columns: tuple[str, ...] = ()
    fields: tuple[TextField, ...] = field(default=())
    spare_fields: bool = False

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_flag("header", self.header)
        check_flag("spare_fields", self.spare_fields)
        check_types("columns", self.columns, str, "names of columns")
        check_types("fields", self.fields, TextField, 'headrace.TextField, as TextField(column="x")')
        if (
            len(check_text(f"{self.name}: separator", self.separator)) != 1
            or not self.separator.isascii()
            or self.separator in "\r\n"
        ):
            raise ValueError(f"{self.name}: separator={self.separator!r} is not one ASCII character")
        if self.header == bool(self.columns):
            raise ValueError(f"{self.name}: either the files have a header, or columns says what they hold")

    def field_of(self, column: str, kind: Kind, *, multi_hot: bool) -> TextField:
        """How the schema's `column` is written; SchemaError when it cannot hold values of that kind."""
        found = next((f for f in self.fields if f.column == column), None) or TextField(column=column)
        if (found.words is not None or found.part is not None) and kind in (Kind.HEX32, Kind.HEX64):
            raise SchemaError(f"column {column!r}: {self.name} has numbers there, not {kind.name.lower()}; say uint64")
        if multi_hot and not found.list_separator:
            raise SchemaError(f"sparse {column!r}: {self.name} has one id a field, multi_hot needs a list_separator")
        if found.list_separator and not multi_hot:
            raise SchemaError(f"column {column!r}: {self.name} has lists there; declare it multi_hot")
        for word, number in (found.words or {}).items():
            if kind == Kind.LABEL and number not in (0, 1):
                raise SchemaError(f"label {column!r}: {self.name} takes {word!r} for {number}; say binary=False")
        return found
