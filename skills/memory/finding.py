"""Finds cards by words: BM25 over titles, edits, signs and reasons. Small, exact, and the same everywhere."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

from tilewright.knowledge.cards import Cards

SATURATION, LENGTH = 1.2, 0.75
"""BM25's usual constants: how soon a repeated word stops counting, and how much a long card is discounted."""


def find(cards: Cards, query: str, limit: int) -> list[tuple[str, str, float]]:
    """The best cards for a query as (kind, id, score), best first; cards that share no word are left out."""
    documents = _documents(cards)
    counts = {key: Counter(_words(text)) for key, text in documents.items()}
    lengths = {key: sum(c.values()) for key, c in counts.items()}
    average = sum(lengths.values()) / len(lengths)
    scores: dict[tuple[str, str], float] = {}
    for word in dict.fromkeys(_words(query)):
        holding = [key for key, c in counts.items() if c[word]]
        rarity = math.log(1 + (len(counts) - len(holding) + 0.5) / (len(holding) + 0.5))
        for key in holding:
            n = counts[key][word]
            long = 1 - LENGTH + LENGTH * lengths[key] / average
            scores[key] = scores.get(key, 0.0) + rarity * n * (SATURATION + 1) / (n + SATURATION * long)
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [(kind, name, round(score, 3)) for (kind, name), score in best[:limit]]


def _words(text: str) -> list[str]:
    found = re.findall(r"[a-z0-9]+", text.lower())
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in found]


def _documents(cards: Cards) -> Mapping[tuple[str, str], str]:
    documents: dict[tuple[str, str], str] = {}
    for d in cards.directions.values():
        parts = (d.id, d.title, d.title, d.intent, *d.aims, *d.triggers, d.risks)
        documents["direction", d.id] = " ".join(parts)
    for s in cards.strategies.values():
        signs = (f"{name} {cards.signs[name].meaning}" for name in (*s.needs, *s.when))
        parts = (s.id, s.title, s.title, s.edit, s.expected, s.preconditions, s.risks, s.direction, *signs)
        documents["strategy", s.id] = " ".join(parts)
    return documents
