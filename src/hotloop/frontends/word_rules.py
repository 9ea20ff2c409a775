r"""How text becomes words before byte-level BPE merges them, by GGUF's names for it.

A GGUF file names the rule of its vocabulary in `tokenizer.ggml.pre`, and nothing else in the file
tells it. A rule is a chain of regular expressions: each cuts the pieces that the ones before it
left into its matches and what lies between them. The expressions are those of the models' own
`tokenizer.json` files, and of llama.cpp (`src/llama-vocab.cpp`), which gave the names; ids are
tested against llama.cpp's. Where that one approximates (it leaves combining marks out of the words
of gpt-4o and tekken, and composes nothing), the models' own files count. A name that is not in
`RULES` is refused: a guess would give slightly wrong ids, and no error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Rule:
    """How text becomes words, and what the file may leave unsaid."""

    words: tuple[str, ...]
    """Regular expressions, applied one after the other."""
    nfc: bool = False
    """Whether text is brought to Unicode's composed form first."""
    whole_words: bool = False
    """Whether a word that is a token is taken as it is, whatever the merges say."""
    adds_bos: bool = False
    """Whether prompts start with BOS where the file doesn't say."""


_DIGIT = r"\p{N}"
_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)  # fmt: skip
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"


def _tiktoken(number: str, letters: str = r"\p{L}", spaces: str = _SPACES) -> str:
    """The words of cl100k and what followed it; most differ in how many digits make one."""
    return (
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{number}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|{spaces}"
    )


def _cased(number: str, suffixes: str = "", ends: str = r"[\r\n/]*") -> str:
    """The words of o200k, where a capital letter begins a new one."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{before}{upper}*{lower}+{suffixes}|{before}{upper}+{lower}*{suffixes}|{number}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+{ends}|{_SPACES}"
    )


_GPT2 = Rule((_GPT2_WORDS,))
_CODE = Rule((_DIGIT, _GPT2_WORDS))
_LLAMA3 = Rule((_tiktoken(r"\p{N}{1,3}"),), whole_words=True, adds_bos=True)
_CL100K = Rule((_tiktoken(r"\p{N}{1,3}"),))
_QWEN2 = Rule((_tiktoken(_DIGIT),), nfc=True)
_O200K = Rule((_cased(r"\p{N}{1,3}", f"{_SUFFIXES}?"),))
_DEEPSEEK3 = Rule(
    (
        r"\p{N}{1,3}",
        _CJK,
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)
_BLOOM = Rule((r" ?[^(\s|.,!?…。，、।۔،)]+",))
#: Jais 2 cuts long runs of spaces into powers of two.
_POWERS = r"\s*[\r\n]+|" + "|".join(
    [rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)] + [r"\s{1,2}(?!\S)", r"\s"]
)
#: Letters that have case, as DeepSeek's first models list them; escaped where NFC would change one.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_CJK_WIDE = "[一-龥ࠀ-一가-퟿]+"

_TEKKEN = Rule((_cased(_DIGIT),), whole_words=True, adds_bos=True)
_DEEPSEEK = Rule(
    (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        _CJK_WIDE,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, _DIGIT))
_FALCON = Rule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, "[0-9][0-9][0-9]"))
_BAILING = Rule(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_SEED = Rule(
    (
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
        rf"|{_SPACES}",
    )
)

# fmt: off
RULES: Mapping[str, Rule] = {
    **dict.fromkeys((
        "gpt-2", "phi-2", "jais", "exaone4", "trillion", "granite-docling", "gigachat", "mellum",
        "a.x-4.0",
    ), _GPT2),
    **dict.fromkeys(("olmo", "mpt"), replace(_GPT2, nfc=True)),
    **dict.fromkeys((
        "smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2",
    ), _CODE),
    "command-r": replace(_CODE, nfc=True),
    **dict.fromkeys((
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    ), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _CL100K),
    **dict.fromkeys(("qwen2", "megrez"), _QWEN2),
    **dict.fromkeys((
        "deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "grok-2",
    ), replace(_QWEN2, nfc=False)),
    "qwen35": Rule((_tiktoken(_DIGIT, r"\p{L}\p{M}"),), nfc=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _O200K),
    "tekken": _TEKKEN,
    "deepseek-llm": _DEEPSEEK,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "falcon": _FALCON,
    "jais-2": Rule((_tiktoken(r"\p{N}{1,3}", spaces=_POWERS),)),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": Rule((*_BLOOM.words, _DIGIT)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    "seed-coder": _SEED,
    "minicpm5": Rule((r"\p{N}{1,3}", _tiktoken(r"\p{N}+")), whole_words=True),
}
# fmt: on
