"""The team's shared memory: what lies where, in bytes. Python and machine code agree on it here.

Every word that several threads write has 128 bytes to itself: two cache lines, since adjacent
lines are fetched in pairs.
"""

from dataclasses import dataclass

LINE = 128

# The launch mailbox.
GENERATION = 0 * LINE  # i32: number of the launch; a parked thread sleeps on this word
FINISHED = 1 * LINE  # i64: threads that have left a launch, counted from the team's start
BARRIER = 2 * LINE  # i64: arrivals at barriers of this launch
ABORT = 3 * LINE  # i64: not zero once the watchdog has given up on this launch
SLEEPERS = 4 * LINE  # i64: threads that are parked, or about to be
CODE = 5 * LINE  # ptr: the function to run …
CONTEXT = CODE + 8  # ptr: … its context …
ARGS = CODE + 16  # ptr: … and its arguments
# Set once, read by all.
THREADS = 6 * LINE  # i64
SPINS = THREADS + 8  # i64: looks at a counter before a thread yields its core
QUIT = THREADS + 16  # i64: not zero when the team is to end
WATCHDOG = THREADS + 24  # i64: nanoseconds without progress that are an error
IDLE_SPINS = THREADS + 32  # i64: looks at the mailbox before an idle thread parks
# One line per thread, for the watchdog's report.
THREAD = 7 * LINE

# In a thread's line.
STAGE = 0  # i64: number of the stage it waits in, 0 at none
EPOCH = 8  # i64: how often that stage had run
TARGET = 16  # i64: what the awaited counter must reach
FOUND = 24  # i64: what it held when the watchdog gave up
BARRIERS = 32  # i64: barriers this thread has passed in this launch

# In a stage's block: how many of its tiles are complete, then each thread's claims.
DONE = 0
CLAIMS = LINE


@dataclass(frozen=True)
class Shared:
    """Sizes of the shared memory for `threads` threads and `stages` stages."""

    threads: int
    stages: int

    @property
    def sync(self) -> int:
        """Where the stages' counters start."""
        return THREAD + self.threads * LINE

    @property
    def stage_bytes(self) -> int:
        return LINE * (1 + self.threads)

    @property
    def nbytes(self) -> int:
        return self.sync + self.stages * self.stage_bytes


# The context of a launch, eight bytes each: base addresses, that of the number of tokens in the
# step (i32), and that of the event buffers where the code is profiled.
WEIGHTS, STATE, WORK, SCRATCH, COUNT, PROFILE = range(6)
CONTEXT_WORDS = 6
