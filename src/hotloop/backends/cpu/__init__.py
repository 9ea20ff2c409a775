"""The CPU backend: LLVM machine code, run by a team of threads.

A launch is one function that every thread of the team enters. Inside it, threads meet only at
counters in shared memory: `sync` claims tiles and waits for stages, `codegen` turns stages, kernels
and loops into that function, `places` says where every value lives, `team` owns the threads.
"""
