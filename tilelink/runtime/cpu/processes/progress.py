"""Words that the processes of a run share: the progress of each process, and whether the run is over."""

import mmap
import threading

LINE = 16  # int64 words: 128 bytes, so that no two processes write to one cache line
HEAD = 1  # lines before those of the processes

ARRIVED, JOINED, BEGUN, BEATS, EPOCH, PLACE = range(6)
AT_BEGIN, AT_FINISH, AT_JOIN = -1, -2, -3


class SharedProgress:
    """A line of counters for each process, which alone writes it, and a word that the parent sets to end the run.

    ARRIVED: barriers reached in the stream. JOINED: epoch whose steps are done. BEGUN: epoch begun for the rank. BEATS:
    signs of life. EPOCH, PLACE: current position: the number of a step, or one of AT_BEGIN, AT_FINISH, AT_JOIN.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._lock = threading.Lock()
        self._memory = mmap.mmap(-1, (HEAD + processes) * LINE * 8, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self._words = memoryview(self._memory).cast("q")

    def get(self, process: int, word: int) -> int:
        """Return a word, with acquire: later loads see all stores that preceded its `put`."""
        value = self._words[(HEAD + process) * LINE + word]
        self._fence()
        return value

    def put(self, process: int, word: int, value: int) -> None:
        """Set a word of the calling process, with release: a reader of the value sees all earlier stores."""
        self._fence()
        self._words[(HEAD + process) * LINE + word] = value

    def beat(self, process: int) -> None:
        """Record that the process is alive."""
        self._words[(HEAD + process) * LINE + BEATS] += 1

    def beats(self) -> int:
        """Return the signs of life of all processes together."""
        return sum(self._words[(HEAD + process) * LINE + BEATS] for process in range(self._processes))

    def abort(self) -> None:
        """End the run: every process stops at its next event or look at a counter."""
        self._words[0] = 1

    def aborted(self) -> bool:
        return self._words[0] != 0

    def place(self, process: int) -> str:
        """Return the position of the process as text: "step 2 of launch 3"."""
        epoch, place = self.get(process, EPOCH), self.get(process, PLACE)
        if not epoch:
            return "its start"
        names = {AT_BEGIN: "the begin", AT_FINISH: "the finish", AT_JOIN: "the end"}
        return f"{names.get(place, f'step {place}')} of launch {epoch}"

    def close(self) -> None:
        self._words.release()
        self._memory.close()

    def _fence(self) -> None:
        """Order earlier loads and stores before later ones, on machines whose memory does not.

        Nothing moves down over a release of the lock, and nothing up over an acquire that follows it.
        """
        for _ in range(2):
            with self._lock:
                pass
