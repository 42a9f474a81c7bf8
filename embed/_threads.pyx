# The threads that the native kernels share. Signatures: _threads.pyi.
"""Threads of the native kernels of one stage."""

from posix.unistd cimport getpid


cdef class Threads:
    def __cinit__(self, int64_t num_threads):
        if not 1 <= num_threads <= 256:
            raise ValueError(f"num_threads={num_threads} is not from 1 to 256")
        self._pid = getpid()
        self.num_threads = num_threads
        if num_threads > 1:
            self._pool = new CppThreadPool(<unsigned>num_threads)

    def __dealloc__(self):
        if self._pool != NULL and getpid() == self._pid:  # a forked child has not the threads, and cannot join them
            del self._pool

    cdef Workers workers(self) noexcept:
        """The pool, or the calling thread alone in a forked child."""
        cdef Workers workers
        if getpid() == self._pid:
            workers.pool = self._pool
            workers.threads = self.num_threads
        else:
            workers.pool = NULL
            workers.threads = 1
        return workers
