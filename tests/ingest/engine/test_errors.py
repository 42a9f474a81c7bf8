import pytest

from headrace.ingest.engine.conformance_sources import TwoPartError
from headrace.ingest.engine.errors import add_context, context_of, twin_of


class PrefixedError(Exception):
    """Takes its own args, but changes them."""

    def __init__(self, text: str) -> None:
        super().__init__("prefix " + text)


class KeywordError(Exception):
    def __init__(self, *, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", 3),
        TwoPartError(7, "text"),
        PrefixedError("text"),
        KeywordError(row=9),
        KeyError(None),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
        KeyboardInterrupt(),
    ],
)
def test_twin_has_type_args_and_attributes_but_no_traceback(error: BaseException) -> None:
    twin = twin_of(raised(error))
    assert twin is not error
    assert type(twin) is type(error)
    assert twin.args == error.args
    assert str(twin) == str(error)
    assert {k: v for k, v in vars(twin).items() if k != "__notes__"} == vars(error)
    assert twin.__traceback__ is None
    assert error.__traceback__ is not None


def test_twin_of_an_os_error_keeps_errno_and_file() -> None:
    twin = twin_of(raised(FileNotFoundError(2, "No such file", "day_0.tsv")))
    assert isinstance(twin, FileNotFoundError)
    assert (twin.errno, twin.filename) == (2, "day_0.tsv")


def test_context_is_appended_innermost_first_and_twins_do_not_share_it() -> None:
    error = ValueError("x")
    add_context(error, "row 3")
    add_context(error, "in node Map")
    twin = twin_of(error)
    add_context(twin, "in node Prefetch")
    assert context_of(error) == ["row 3", "in node Map"]
    assert context_of(twin) == ["row 3", "in node Map", "in node Prefetch"]
    assert error.args == ("x",)


def test_context_becomes_notes_where_python_has_them() -> None:
    error = ValueError("x")
    add_context(error, "in node Map")
    if hasattr(error, "add_note"):
        assert error.__notes__ == ["in node Map"]
        assert twin_of(error).__notes__ == ["in node Map"]


def test_an_error_without_context_has_none() -> None:
    assert context_of(ValueError()) == []
