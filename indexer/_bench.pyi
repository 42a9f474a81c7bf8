import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

def stream_pass(ids: U32, out: U32) -> None:
    """Read each id, write each query id, once and in order."""

class RandomReads:
    """A table of `capacity` 16-byte entries to be read at random."""

    def __init__(self, capacity: int) -> None: ...
    def read(self, hashes: U64) -> int:
        """Read the entry that each hash picks, prefetched; a sum of what was read."""
    @property
    def nbytes(self) -> int: ...

class LockedMaps:
    """The published design: `num_shards` standard hash tables, each with a lock; keys are 64-bit hashes.

    One call at a time; its keys are shared among `num_threads` threads. Which of two new keys of a batch comes first is
    settled by the data with one thread only.
    """

    def __init__(self, num_shards: int) -> None: ...
    def index_batch(self, hashes: U64, num_threads: int = 1) -> U64:
        """Locations of the keys; each shard is locked once."""
    def index_each(self, hashes: U64, num_threads: int = 1) -> U64:
        """Locations of the keys; a lock is taken for each."""
