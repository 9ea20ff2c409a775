"""benchmarks/: the shaped model is a model, engines live in processes, and the table adds up.

No timing is judged: the peer here answers with made-up numbers.
"""

import io
import json
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import comparison
import comparison_table
import hotloop
import shaped_model
import worker
from comparison import Comparison, Row, Workload, compare
from first_token import FirstToken, first_tokens
from hotloop.bench.fingerprint import fingerprint
from hotloop.bench.result import Samples
from hotloop.frontends.open_file import open_model
from hotloop.ir.formats import dequantise
from process import EngineError, EngineProcess, MissingError
from shaped_model import Shapes

TINY = Shapes(layers=2, width=64, heads=2, kv_heads=1, ffn=96, vocab=300, context=64)
DECODE = Workload("decode", prompt=4, tokens=6)
PROMPT = Workload("prompt", prompt=9)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shaped") / "tiny-Q4_0.gguf"
    shaped_model.write(path, TINY, "Q4_0")
    return path


@pytest.mark.parametrize("format", shaped_model.FORMATS)
def test_shaped_model_is_random_in_its_format(format: str, tmp_path: Path) -> None:
    path = tmp_path / f"{format}.gguf"
    shaped_model.write(path, TINY, format)
    assert [child.name for child in tmp_path.iterdir()] == [path.name]
    file = open_model(path)
    weight = file.tensors["blk.1.ffn_down.weight"]
    assert weight.type.shape == (TINY.width, TINY.ffn)
    assert weight.type.format.name == format.lower()
    values = dequantise(weight.data, weight.type)
    assert values.std() == pytest.approx(shaped_model.SCALE, rel=0.05)
    assert abs(values.mean()) < shaped_model.SCALE / 10


def test_shaped_model_with_experts(tmp_path: Path) -> None:
    shapes = replace(TINY, experts=4, experts_used=2)
    shaped_model.write(tmp_path / "moe.gguf", shapes, "Q4_0")
    with hotloop.load(tmp_path / "moe.gguf", threads=1) as model:
        experts = model.config.experts
        assert experts is not None
        assert (experts.count, experts.used, experts.ffn) == (4, 2, TINY.ffn)
        assert len(list(model.generate([1, 2, 3], max_tokens=3))) == 3


def test_shaped_model_speaks(tiny: Path) -> None:
    with hotloop.load(tiny, threads=1) as model:
        assert (model.config.layers, model.config.vocab) == (TINY.layers, TINY.vocab)
        assert model.detokenize(model.tokenize("the cat, é\n")) == "the cat, é\n"
        assert sum(token.id >= 0 for token in model.generate("the", 3, stop_ids=())) >= 3


def test_vocabulary_makes_every_token_by_a_merge() -> None:
    tokens, merges = shaped_model.vocabulary(256 + 256 * 256 + 10)
    assert len(set(tokens)) == len(tokens)
    assert [merge.replace(" ", "") for merge in merges] == tokens[256:]
    assert {part for merge in merges for part in merge.split()} <= set(tokens)


def test_llama_1b_has_its_parameters() -> None:
    counted = sum(math.prod(shape) for _, shape in shaped_model.LLAMA_1B.matrices())
    assert counted + 33 * 2048 == 1_235_814_400  # what Hugging Face says of Llama-3.2-1B


class FakeProcess:
    """An engine that takes a second for a token; it fails from its `dies`-th request on."""

    def __init__(self, engine: str, dies: int = 1 << 30) -> None:
        self.engine, self.version = engine, f"{engine} 1.0"
        self.facts: dict[str, Any] = {"weight_bytes": 1 << 20, "kv_bytes": 64, "macs": 10**9}
        self.asked: list[str] = []
        self.closed = False
        self._dies = dies

    def _answer(self, what: str, seconds: float) -> float:
        self.asked.append(what)
        if len(self.asked) >= self._dies:
            raise EngineError(f"{self.engine} ended with status -11")
        return seconds

    def decode(self, ids: list[int], n: int) -> float:
        return self._answer("decode", float(n))

    def prompt(self, ids: list[int]) -> float:
        return self._answer("prompt", len(ids) / 4)

    def peak_bytes(self) -> int:
        return 1000

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> "FakeProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeStart:
    """Starts fakes, and remembers them and their environments."""

    def __init__(self, **dies: int) -> None:
        self.started: list[FakeProcess] = []
        self.environments: list[Mapping[str, str]] = []
        self._dies = dies

    def __call__(
        self, engine: str, model: Path, threads: int, context: int, environment: Mapping[str, str]
    ) -> Any:
        if self._dies.get(engine) == 0:
            raise MissingError("not installed (no module 'x')")
        self.environments.append(environment)
        self.started.append(FakeProcess(engine, self._dies.get(engine, 1 << 30)))
        return self.started[-1]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory reads at 2 GB/s, cores do 20 GMAC/s, and nothing is done to find that out."""

    class Read:
        def __init__(self, nbytes: int, team: object) -> None:
            assert nbytes > 0

        def gbps(self) -> float:
            return 2.0

    class Peak:
        def __init__(self, team: object) -> None:
            pass

        def gmacs(self) -> float:
            return 20.0

    monkeypatch.setattr(comparison, "ReadProbe", Read)
    monkeypatch.setattr(comparison, "PeakProbe", Peak)
    monkeypatch.setattr(comparison, "SETTLE_SECONDS", 0)


@pytest.mark.usefixtures("quick")
def test_engines_take_turns_and_all_are_closed(tiny: Path) -> None:
    start = FakeStart()
    result = compare(tiny, [DECODE, PROMPT], [1, 2], rounds=3, start=start)
    assert [(row.engine, row.workload, row.threads) for row in result.rows] == [
        (engine, workload, threads)
        for threads in (1, 2)
        for workload in (DECODE, PROMPT)
        for engine in comparison.ENGINES
    ]
    assert all(process.closed for process in start.started)
    assert all(process.asked == ["decode"] * 4 + ["prompt"] * 4 for process in start.started)
    decode, prompt = result.rows[0], result.rows[len(comparison.ENGINES)]
    assert decode.tok_s.values == (1.0, 1.0, 1.0)
    assert prompt.tok_s.median == 4.0
    assert result.ratio(decode) == 1.0
    assert result.token_bytes(DECODE) == (1 << 20) + 64 * 7
    assert result.share(decode) == pytest.approx(result.token_bytes(DECODE) / 2e9)
    assert result.rate(prompt) == 4.0
    assert result.share(prompt) == 0.2


@pytest.mark.usefixtures("quick")
def test_a_peer_that_is_missing_or_dies_is_named_and_the_others_go_on(tiny: Path) -> None:
    two = comparison.ENGINES[:2]
    missing = compare(tiny, [DECODE], [1], rounds=1, start=FakeStart(llama_cpp=0), names=two)
    assert missing.absent == {"llama_cpp": "not installed (no module 'x')"}
    assert [row.engine for row in missing.rows] == ["hotloop"]
    assert missing.ratio(missing.rows[0]) is None
    start = FakeStart(llama_cpp=2)
    dead = compare(tiny, [DECODE, PROMPT], [1], rounds=2, start=start, names=two)
    assert dead.absent == {"llama_cpp": "llama_cpp ended with status -11"}
    assert [row.engine for row in dead.rows] == ["hotloop", "hotloop"]
    assert all(process.closed for process in start.started)


@pytest.mark.usefixtures("quick")
def test_without_hotloop_there_is_no_comparison(tiny: Path) -> None:
    with pytest.raises(EngineError, match="not installed"):
        compare(tiny, [DECODE], [1], rounds=1, start=FakeStart(hotloop=0))
    start = FakeStart(hotloop=3)
    with pytest.raises(EngineError, match="status -11"):
        compare(tiny, [DECODE], [1], rounds=5, start=start)
    assert all(process.closed for process in start.started)


def test_first_token_starts_hotloop_twice_on_one_cache(tiny: Path) -> None:
    start = FakeStart()
    results = first_tokens(tiny, 1, start, comparison.ENGINES[:2])
    assert [(r.engine, r.state) for r in results] == [
        ("hotloop", "cold"),
        ("hotloop", "code cached"),
        ("llama_cpp", ""),
    ]
    caches = [environment["HOTLOOP_CACHE"] for environment in start.environments]
    assert caches[0] == caches[1]
    assert not Path(caches[0]).exists()
    assert all(process.closed for process in start.started)
    assert results[0].to_json()["peak_per_file"] == 1000 / tiny.stat().st_size


def test_table_lines_up_and_json_has_every_row() -> None:
    rows = tuple(
        Row(workload, 2, engine, "1", Samples((rate, rate * 3, rate * 2)))
        for workload in (DECODE, PROMPT)
        for engine, rate in (("hotloop", 100.0), ("llama_cpp", 25.0))
    )
    limits = {(workload, 2): Samples((10.0,)) for workload in (DECODE, PROMPT)}
    absent = {"other": "not installed"}
    result = Comparison("m.gguf", 10**8, 4 * 10**7, 0, 10**7, rows, limits, absent)
    start = FirstToken("m.gguf", "hotloop", 2, "cold", 1.234, 2 * 10**8, 10**8)
    console = Console(file=io.StringIO(), width=110)
    for part in comparison_table.render(fingerprint(), [result], [start], 3):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line.rstrip() for line in text.splitlines()]
    header = next(line for line in lines if line.startswith("workload"))
    first = next(line for line in lines if line.startswith("decode") and "hotloop" in line)
    assert header.index("engine") == first.index("hotloop")
    assert len(header) == len(first)
    assert first.split()[-7:] == ["200.0", "100–300", "4.00", "8.0", "GB/s", "10.0", "80%"]
    prompt = next(line for line in lines if line.startswith("prompt") and "hotloop" in line)
    assert prompt.split()[-4:] == ["2.0", "GMAC/s", "10.0", "20%"]
    assert "other: not installed" in lines
    start_row = next(line for line in lines if "hotloop cold" in line)
    assert start_row.split()[-3:] == ["1.23", "200", "2.00"]
    written = json.loads(json.dumps(result.to_json()))
    assert [row["ratio"] for row in written["rows"]] == [4.0, 1.0, 4.0, 1.0]
    assert [row["share"] for row in written["rows"]] == [0.8, 0.2, 0.2, 0.05]


def test_worker_answers_every_request_whatever_the_engine_does() -> None:
    class Engine:
        version = "fake 1"

        def __init__(self, model: str, threads: int, context: int) -> None:
            if model == "broken":
                raise OSError("no such model")

        def decode(self, ids: list[int], n: int) -> float:
            return n / len(ids)

        def prompt(self, ids: list[int]) -> float:
            raise ValueError("too long")

        def facts(self) -> dict[str, Any]:
            return {"weight_bytes": 5}

    module = types.SimpleNamespace(Engine=Engine)
    requests = [
        {"do": "open", "model": "broken", "threads": 1, "context": 8},
        {"do": "open", "model": "m", "threads": 1, "context": 8},
        {"do": "decode", "ids": [1, 2], "n": 3},
        {"do": "prompt", "ids": [1, 2]},
        {"do": "memory"},
    ]
    answers = io.StringIO()
    worker.serve(module, io.StringIO("\n".join(map(json.dumps, requests))), answers)
    parsed = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert parsed[0] == {"error": "OSError: no such model"}
    assert parsed[1] == {"version": "fake 1", "facts": {"weight_bytes": 5}}
    assert parsed[2] == {"seconds": 1.5}
    assert parsed[3] == {"error": "ValueError: too long"}
    assert parsed[4]["peak"] > 1 << 20


def test_hotloop_in_a_process_of_its_own(tiny: Path) -> None:
    with EngineProcess("hotloop", tiny, 1, 32, {}) as engine:
        assert engine.version == f"hotloop {hotloop.__version__}"
        assert engine.facts["weight_bytes"] > 0
        assert engine.facts["kv_bytes"] > 0
        assert engine.decode([1, 2, 3], 4) > 0
        assert engine.prompt([1, 2, 3]) > 0
        assert engine.peak_bytes() > 1 << 20
        with pytest.raises(EngineError, match="UsageError"):
            engine.decode([], 1)
    with pytest.raises(EngineError, match="ended"):
        engine.decode([1], 1)


def test_engine_that_is_not_there(tiny: Path) -> None:
    with pytest.raises(MissingError, match=r"no module 'engines\.nothing'"):
        EngineProcess("nothing", tiny, 1, 32, {})
    with pytest.raises(EngineError, match="does not exist"):
        EngineProcess("hotloop", tiny.with_name("no.gguf"), 1, 32, {}, sys.executable)
    with pytest.raises(EngineError, match="cannot be started"):
        EngineProcess("hotloop", tiny, 1, 32, {}, "/no/python")
