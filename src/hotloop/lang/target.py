"""Target: what code is generated for, as plain data."""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Target:
    """An LLVM target: triple, CPU, and the features that kernels may ask for."""

    triple: str
    cpu: str
    features: frozenset[str]

    @property
    def avx2(self) -> bool:
        """AVX2, FMA and F16C together, as every AVX2 CPU but the first few has them."""
        return {"avx2", "fma", "f16c"} <= self.features

    @property
    def half(self) -> bool:
        """Instructions between float16 and float32; without them LLVM calls a library for each."""
        return "f16c" in self.features or self.triple.startswith("aarch64")

    @property
    def feature_string(self) -> str:
        return ",".join(f"+{name}" for name in sorted(self.features))


#: For compiling only, on any machine: tests look at the code.
AARCH64 = Target("aarch64-unknown-linux-gnu", "neoverse-n1", frozenset({"neon", "fullfp16"}))
#: What every x86-64 CPU runs.
X86_64 = Target("x86_64-unknown-linux-gnu", "x86-64", frozenset({"sse2"}))


@cache
def host(portable: bool = False) -> Target:
    """This machine; `portable` leaves out every feature that selects a special kernel."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    triple = llvm.get_process_triple()
    if portable:
        return Target(triple, "x86-64" if triple.startswith("x86_64") else "generic", frozenset())
    features = llvm.get_host_cpu_features()
    present = frozenset(name for name, on in features.items() if on)
    return Target(triple, llvm.get_host_cpu_name(), present)
