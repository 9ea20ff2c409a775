"""The team's own machine code: how threads wait for a launch, and how the host makes one.

Parked threads sleep in the kernel (a futex on the mailbox's generation); spinning ones look at it
until it changes. Where the system has no futex that we know, parking is a loop of short sleeps.

    i64 hl_worker(team, tid)
    i64 hl_run(team, context, launches, n, sync_bytes, done)
    i64 hl_stop(team)

A launch is `i64 launch(context, team, tid, args)`: 0, or 1 after an abort.
"""

from hotloop.backends.cpu import shared
from hotloop.backends.cpu.sync import Sync, define_sync, word
from hotloop.lang import (
    Module,
    Pointer,
    Value,
    Var,
    call,
    call_address,
    constant,
    fence,
    fetch_add,
    function,
    i32,
    i64,
    if_,
    load_acquire,
    load_relaxed,
    loop,
    null,
    pause,
    ptr,
    ret,
    store_release,
    while_,
)

FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
NAP_US = 50
EVERYBODY = 2**31 - 1
#: An idle thread that may look this often never parks.
NEVER_PARK = 1 << 62


def define_runtime(module: Module) -> None:
    """Trace `hl_worker`, `hl_run` and `hl_stop` into `module`."""
    sync = define_sync(module)
    _define_worker(module)
    _define_run(module, sync)
    with function(module, "hl_stop", [("team", ptr)], i64, exported=True) as (team,):
        store_release(word(team, shared.QUIT), 1)
        _announce(module, team)
        ret(0)


def _futex(module: Module, address: Pointer, operation: int, value: Value) -> None:
    arch, *rest = module.target.triple.split("-")
    if arch in SYS_FUTEX and "linux" in rest:
        syscall = Pointer(module.declare("syscall", i64, [i64]))
        number, nothing = constant(SYS_FUTEX[arch], i64), null()
        args = [number, address, constant(operation, i32), value, nothing, nothing, value]
        call_address(syscall, args, i64, variadic_from=1)
    elif operation == FUTEX_WAIT_PRIVATE:
        call(module.declare("usleep", i32, [i32]), [NAP_US], i32)


def _announce(module: Module, team: Value) -> None:
    """Open the mailbox: spinning threads see its new generation, parked ones are woken.

    A thread counts itself as a sleeper, then looks at the generation a last time (the futex does);
    the host changes the generation, then looks for sleepers. With a fence on both sides, one of
    them sees the other.
    """
    generation = word(team, shared.GENERATION).cast(i32)
    fetch_add(generation, 1)
    fence()
    with if_(load_relaxed(word(team, shared.SLEEPERS)) > 0):
        _futex(module, generation, FUTEX_WAKE_PRIVATE, constant(EVERYBODY, i32))


def _park(module: Module, team: Value, seen: Value) -> None:
    sleepers = word(team, shared.SLEEPERS)
    fetch_add(sleepers, 1)
    fence()
    _futex(module, word(team, shared.GENERATION).cast(i32), FUTEX_WAIT_PRIVATE, seen)
    fetch_add(sleepers, -1)


def _define_worker(module: Module) -> None:
    """A thread's life: wait for a launch, run it, report, until the team ends."""
    params = [("team", ptr), ("tid", i64)]
    with function(module, "hl_worker", params, i64, exported=True) as (team, tid):
        generation = word(team, shared.GENERATION).cast(i32)
        seen = Var(constant(0, i32))
        quit_ = word(team, shared.QUIT)
        for _ in while_(lambda: load_acquire(quit_).equals(0)):
            spins = Var(word(team, shared.IDLE_SPINS).load())
            for _ in while_(lambda: load_acquire(generation).equals(seen)):
                with if_(spins <= 0):
                    _park(module, team, seen.get())
                with if_(spins > 0):
                    pause()
                    spins.set(spins - 1)
            seen.set(load_acquire(generation))
            with if_(load_acquire(quit_).equals(0)):
                _enter(team, tid)
                fetch_add(word(team, shared.FINISHED), 1)
        ret(0)


def _enter(team: Value, tid: Value) -> Value:
    """Run the launch in the mailbox."""
    code = word(team, shared.CODE).load_pointer()
    context = word(team, shared.CONTEXT).load_pointer()
    args = word(team, shared.ARGS).load_pointer()
    return call_address(code, [context, team, tid, args], i64)


def _define_run(module: Module, sync: Sync) -> None:
    """All launches in order; again and again, where `done` is given, until the i32 there is set.

    `launches` are n pairs (code, args). The calling thread is thread 0 of the team.
    """
    params = [("team", ptr), ("context", ptr), ("launches", ptr), ("n", i64)]
    params += [("sync_bytes", i64), ("done", ptr)]
    with function(module, "hl_run", params, i64, exported=True) as arguments:
        team, context, launches, n, sync_bytes, done = arguments
        assert isinstance(done, Pointer)
        assert isinstance(launches, Pointer)
        pairs, flag = launches.cast(ptr), done.cast(i32)
        others = word(team, shared.THREADS).load() - 1
        finished = word(team, shared.FINISHED)
        target = Var(finished.load())
        word(team, shared.CONTEXT).cast(ptr).store(context)
        zero, more = constant(0, i64), Var(constant(1, i32))
        for _ in while_(lambda: more.differs(0)):
            for k in loop(n):
                word(team, shared.CODE).cast(ptr).store(pairs.load(k * 2))
                word(team, shared.ARGS).cast(ptr).store(pairs.load(k * 2 + 1))
                _reset(module, team, sync_bytes)
                _announce(module, team)
                with if_(_enter(team, zero).differs(0)):
                    ret(1)
                target += others
                with if_(call(sync.wait, [finished, target, team, zero, -1, 0]).differs(0)):
                    ret(1)
            more.set(0)
            with if_(~done.is_null()):
                more.set(flag.load().equals(0).to(i32))
        ret(0)


def _reset(module: Module, team: Value, sync_bytes: Value) -> None:
    """Counters of a launch start at zero; between launches nobody looks at them."""
    threads = word(team, shared.THREADS).load()
    word(team, shared.BARRIER).store(0)
    for t in loop(threads):
        line = word(team, shared.THREAD).at(t * (shared.LINE // 8))
        line.store(0, shared.BARRIERS // 8)
        line.store(0, shared.STAGE // 8)
    clear = module.declare("memset", ptr, [ptr, i32, i64])
    assert isinstance(team, Pointer)
    call(clear, [team.at(threads * shared.LINE + shared.THREAD), 0, sync_bytes], ptr)
