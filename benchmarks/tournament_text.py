"""The text task of tournament.py: of which installed package is a docstring? Real text, and nothing to download.

Rows depend on the installed versions, so figures of two environments compare only roughly.
"""

import importlib.util
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ("numpy", "keras", "pandas", "asyncio", "email", "unittest")
WORDS, LENGTH, LEAST = 5_000, 40, 8  # known words; words of a row; words of the shortest row
ROWS = 8_000
DOCSTRING = re.compile(r'"""(.+?)"""', re.S)


def docstrings() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return (rows of word numbers, classes) for training and test. A docstring is cut to rows of LENGTH words."""
    texts: list[tuple[list[str], int]] = []
    for label, package in enumerate(CLASSES):
        for source in sorted(_directory(package).rglob("*.py")):
            for found in DOCSTRING.findall(source.read_text(encoding="utf-8", errors="ignore")):
                words = re.findall(r"[a-z]+", found.lower())
                cut = (words[i : i + LENGTH] for i in range(0, len(words), LENGTH))
                texts += [(row, label) for row in cut if len(row) >= LEAST]
    chosen = np.random.default_rng(0).permutation(len(texts))[:ROWS]
    known = Counter(word for i in chosen for word in texts[i][0] if word not in CLASSES)
    numbers = {word: k + 2 for k, (word, _) in enumerate(known.most_common(WORDS - 2))}  # 0: padding, 1: unknown
    x = np.zeros((len(chosen), LENGTH), np.int32)
    for row, i in zip(x, chosen, strict=True):
        row[: len(texts[i][0])] = [numbers.get(word, 1) for word in texts[i][0]]
    y = np.array([texts[i][1] for i in chosen], np.int32)
    test = len(y) // 5
    return (x[test:], y[test:]), (x[:test], y[:test])


def _directory(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent
