"""RoPE scaling: the rules that stretch a model's context by turning pairs more slowly.

Each function takes the frequencies of the pairs and gives the scaled ones. Names and constants are
those of the reference implementations; positions are counted in tokens.
"""

import math

import numpy as np
from numpy.typing import NDArray

Frequencies = NDArray[np.float64]


def llama3(
    frequencies: Frequencies, *, factor: float, low: float, high: float, original: float
) -> Frequencies:
    """Llama 3.1's: long waves are divided by `factor`, short ones stay, those between blended."""
    turns = original * frequencies / (2 * math.pi)  # rotations within the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(frequencies * (blend + (1 - blend) / factor))


def yarn(
    frequencies: Frequencies,
    theta: float,
    *,
    factor: float,
    original: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Frequencies:
    """YaRN (Peng et al., 2023, arXiv 2309.00071): a ramp over the pairs instead of the waves.

    Pairs that turn more than `beta_fast` times within the original context stay, those that turn
    less than `beta_slow` times are divided by `factor`. With `truncate`, the ramp's ends are whole
    pairs, as in the authors' code.
    """
    dims = 2 * len(frequencies)

    def pair(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(high - low, 0.001), 0, 1)
    return np.asarray(frequencies * (1 - ramp + ramp / factor))


def yarn_attention_factor(factor: float, multiplier: float = 1.0) -> float:
    """What YaRN multiplies cos and sin by, so that attention stays as sharp as it was."""
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_attention_factor(factor: float, original: float) -> float:
    """LongRoPE's (Ding et al., 2024, arXiv 2402.13753) for a context `factor` times as long."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
