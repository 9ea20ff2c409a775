"""Synchronisation, as machine code: claiming tiles, waiting for stages, barriers.

Counters only ever grow during a launch, so none is reset while a thread may look at it. A stage
that runs for the e-th time (its *epoch*, from 0) with n tiles is complete when its DONE counter
reaches (e + 1) · n.

Claims. Each thread owns a contiguous share of a stage's tiles and takes them in order, so that its
reads of the weights are one long stream; when its share is used up it takes from the others', so
a thread that the operating system delays holds nobody up. A claim is a compare-and-swap on the
share's counter, which runs through [e · share, (e + 1) · share) in epoch e: a thread that comes
late finds it past its end and takes nothing. It cannot be before its beginning, since a thread
leaves a stage only when all shares are used up.
"""

from dataclasses import dataclass

from llvmlite import ir

from hotloop.backends.cpu import shared
from hotloop.lang import (
    Module,
    Pointer,
    Value,
    Var,
    call,
    compare_exchange,
    constant,
    fetch_add,
    function,
    i32,
    i64,
    if_,
    load_acquire,
    load_relaxed,
    pause,
    ptr,
    ret,
    store_release,
    while_,
)

CLOCK_MONOTONIC = 1
#: Longest step of the clock that counts as waiting: more means the process was stopped meanwhile.
LONGEST_NAP_NS = 50_000_000

_WAIT_PARAMS = (
    ("counter", ptr),
    ("target", i64),
    ("team", ptr),
    ("tid", i64),
    ("stage", i64),
    ("epoch", i64),
)


@dataclass(frozen=True)
class Sync:
    """The synchronisation functions of one module.

    i64 wait(counter, target, team, tid, stage, epoch)   0 when reached, 1 after an abort
    i64 claim(claims, epoch, tiles, team, tid)           the tile, or -1 when none is left
    i64 barrier(team, tid, stage, epoch)                 0 when all have arrived, 1 after an abort
    """

    wait: ir.Function
    claim: ir.Function
    barrier: ir.Function


def define_sync(module: Module) -> Sync:
    """Trace the synchronisation functions into `module`."""
    wait = _define_wait(module, _define_wait_slow(module))
    return Sync(wait, _define_claim(module), _define_barrier(module, wait))


def word(base: Value, offset: int) -> Pointer:
    """The i64 at byte `offset` of a pointer."""
    assert isinstance(base, Pointer)
    return base.at(offset).cast(i64)


def thread_line(team: Value, tid: Value) -> Pointer:
    assert isinstance(team, Pointer)
    return team.at(tid * shared.LINE + shared.THREAD)


def _define_wait(module: Module, slow: ir.Function) -> ir.Function:
    with function(module, "hl_wait", _WAIT_PARAMS, i64) as arguments:
        counter, target = arguments[:2]
        with if_(load_acquire(word(counter, 0)) >= target):
            ret(0)
        ret(call(slow, arguments))
    return module.functions["hl_wait"]


def _define_wait_slow(module: Module) -> ir.Function:
    """The part of `wait` that really waits: spin, then yield the core, and watch the clock."""
    with function(module, "hl_wait_slow", _WAIT_PARAMS, i64, noinline=True) as arguments:
        address, target, team, tid, stage, epoch = arguments
        counter, abort = word(address, 0), word(team, shared.ABORT)
        spins = Var(word(team, shared.SPINS).load())
        for _ in while_(lambda: spins > 0):
            with if_(load_acquire(counter) >= target):
                ret(0)
            pause()
            spins.set(spins - 1)
        line = thread_line(team, tid)
        word(line, shared.STAGE).store(stage)
        word(line, shared.EPOCH).store(epoch)
        word(line, shared.TARGET).store(target)
        waited, before = Var(constant(0, i64)), Var(_read_clock(module))
        for _ in while_(lambda: load_acquire(counter) < target):
            word(line, shared.FOUND).store(load_relaxed(counter))
            with if_(load_relaxed(abort).differs(0)):
                ret(1)
            call(module.declare("sched_yield", i32, []), [], i32)
            now = _read_clock(module)
            step = now - before
            with if_(step < LONGEST_NAP_NS):
                waited += step
            before.set(now)
            with if_(waited > word(team, shared.WATCHDOG).load()):
                store_release(abort, 1)
        word(line, shared.STAGE).store(0)
        ret(0)
    return module.functions["hl_wait_slow"]


def _read_clock(module: Module) -> Value:
    """Nanoseconds of the monotonic clock."""
    time = Var(constant(0, i64 * 2))  # struct timespec: seconds, nanoseconds
    read = module.declare("clock_gettime", i32, [i32, ptr])
    call(read, [CLOCK_MONOTONIC, Pointer(time.slot)], i32)
    parts = time.get()
    return parts.lane(0) * 1_000_000_000 + parts.lane(1)


def _define_claim(module: Module) -> ir.Function:
    params = [("claims", ptr), ("epoch", i64), ("tiles", i64), ("team", ptr), ("tid", i64)]
    with function(module, "hl_claim", params, i64, noinline=True) as arguments:
        claims, epoch, tiles, team, tid = arguments
        assert isinstance(claims, Pointer)
        threads = word(team, shared.THREADS).load()
        tried, owner = Var(constant(0, i64)), Var(tid)
        seen, end = Var(constant(0, i64)), Var(constant(0, i64))
        for _ in while_(lambda: tried < threads):
            first = tiles * owner // threads
            share = tiles * (owner + 1) // threads - first
            begin = epoch * share
            end.set(begin + share)
            counter = word(claims.at(owner * shared.LINE), 0)
            seen.set(load_relaxed(counter))
            for _ in while_(lambda: seen < end):
                found, won = compare_exchange(counter, seen, seen + 1)
                with if_(won):
                    ret(first + found - begin)
                seen.set(found)
            tried.set(tried + 1)
            owner.set(owner + 1)
            with if_(owner >= threads):
                owner.set(0)
        ret(-1)
    return module.functions["hl_claim"]


def _define_barrier(module: Module, wait: ir.Function) -> ir.Function:
    params = [("team", ptr), ("tid", i64), ("stage", i64), ("epoch", i64)]
    with function(module, "hl_barrier", params, i64, noinline=True) as (team, tid, stage, epoch):
        passed = word(thread_line(team, tid), shared.BARRIERS)
        number = passed.load() + 1
        passed.store(number)
        arrivals = word(team, shared.BARRIER)
        fetch_add(arrivals, 1)
        target = number * word(team, shared.THREADS).load()
        ret(call(wait, [arrivals, target, team, tid, stage, epoch]))
    return module.functions["hl_barrier"]
