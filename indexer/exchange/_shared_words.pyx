# Counters in memory that two processes share. Signatures: _shared_words.pyi.
"""Counters in memory that two processes share: release and acquire."""

from libc.stdint cimport int64_t, uintptr_t


cdef extern from "shared_words.hpp" namespace "headrace" nogil:
    void cpp_put "headrace::put_word"(int64_t* word, int64_t value) noexcept
    int64_t cpp_read "headrace::read_word"(const int64_t* word) noexcept


def put_word(int64_t[::1] words, int64_t at, int64_t value):
    _check(<uintptr_t>&words[0] if words.shape[0] else 0, words.shape[0], at)
    cpp_put(&words[at], value)


def read_word(const int64_t[::1] words, int64_t at):
    _check(<uintptr_t>&words[0] if words.shape[0] else 0, words.shape[0], at)
    return cpp_read(&words[at])


cdef int _check(uintptr_t address, Py_ssize_t size, int64_t at) except -1:
    if not 0 <= at < size:
        raise IndexError(f"word {at} of {size}")
    if address % sizeof(int64_t):
        raise ValueError("words that are shared must be aligned to 8 bytes")
    return 0
