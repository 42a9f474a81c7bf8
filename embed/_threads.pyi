"""Threads of the native kernels of one stage; results do not depend on their number."""

class Threads:
    """`num_threads` (1 to 256) counts the calling thread: 1 starts none. Joined when the object goes.

    In a forked child, which has none of the threads, the kernels run in the caller. Two callers at once: the second
    works alone.
    """

    num_threads: int
    def __init__(self, num_threads: int) -> None: ...
