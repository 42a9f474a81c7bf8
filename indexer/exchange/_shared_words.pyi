import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

def put_word(words: I64, at: int, value: int) -> None:
    """Put `value` at ``words[at]``; who reads it sees all that this thread wrote before. IndexError, ValueError for words
    that are not aligned."""

def read_word(words: I64, at: int) -> int:
    """``words[at]``; what the thread that put it there wrote before is seen after. Errors as of :func:`put_word`."""
