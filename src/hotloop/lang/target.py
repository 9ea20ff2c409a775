"""Target: what code is generated for, as plain data."""

from dataclasses import dataclass
from functools import cache

from hotloop.machine.host import may_use_tiles


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
    def vnni(self) -> bool:
        """`vpdpbusd` on 256 bits: four u8 × i8 products added to a 32-bit lane, without a limit."""
        return "avxvnni" in self.features or {"avx512vnni", "avx512vl"} <= self.features

    @property
    def vnni512(self) -> bool:
        """The same on 512 bits, with the twice as many and twice as wide registers of AVX-512."""
        return {"avx512f", "avx512bw", "avx512vl", "avx512vnni"} <= self.features

    @property
    def amx(self) -> bool:
        """Tiles of 8-bit integers, next to `vnni512`."""
        return self.vnni512 and {"amx-tile", "amx-int8"} <= self.features

    @property
    def dotprod(self) -> bool:
        """AArch64's `sdot`: four i8 × i8 products added to a 32-bit lane."""
        return self.triple.startswith("aarch64") and "dotprod" in self.features

    @property
    def i8mm(self) -> bool:
        """AArch64's `smmla`: two rows of eight i8 times two, twice the products of `sdot`."""
        return self.dotprod and "i8mm" in self.features

    @property
    def sums_four(self) -> bool:
        """One instruction adds four 8-bit products to a 32-bit lane."""
        return self.vnni or self.dotprod

    @property
    def half(self) -> bool:
        """Instructions between float16 and float32; without them LLVM calls a library for each."""
        return "f16c" in self.features or self.triple.startswith("aarch64")

    @property
    def feature_string(self) -> str:
        return ",".join(f"+{name}" for name in sorted(self.features))


#: For compiling only, on any machine: tests look at the code.
AARCH64 = Target("aarch64-unknown-linux-gnu", "neoverse-n1", frozenset({"neon", "fullfp16"}))
#: The same with the 8-bit dot products of Arm v8.2.
AARCH64_DOT = Target(AARCH64.triple, AARCH64.cpu, AARCH64.features | {"dotprod"})
#: The same with the 8-bit matrix products of Arm v8.6.
AARCH64_I8MM = Target(AARCH64.triple, "neoverse-v1", AARCH64_DOT.features | {"i8mm"})
#: What every x86-64 CPU runs.
X86_64 = Target("x86_64-unknown-linux-gnu", "x86-64", frozenset({"sse2"}))
#: Any CPU with AVX2 and its companions, and nothing newer; then with either kind of VNNI.
AVX2 = Target(X86_64.triple, "haswell", frozenset({"avx2", "fma", "f16c"}))
AVX_VNNI = Target(X86_64.triple, "alderlake", AVX2.features | {"avxvnni"})
AVX512_VNNI = Target(
    X86_64.triple,
    "icelake-server",
    AVX2.features | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"},
)
#: The same with AMX.
AMX = Target(X86_64.triple, "sapphirerapids", AVX512_VNNI.features | {"amx-tile", "amx-int8"})


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
    if "amx-tile" in present and not may_use_tiles():
        present = frozenset(name for name in present if not name.startswith("amx-"))
    return Target(triple, llvm.get_host_cpu_name(), present)
