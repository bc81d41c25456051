"""A recorded choice in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.harness.types import Choice, Json

MOST = 9
"""Sentences about alternatives: as many as there are directions."""


def sentences(choice: Choice) -> list[str]:
    """What decided, most probable alternative first; understands what `knowledge.memory` records."""
    terms: Mapping[str, Any] = choice.terms if isinstance(choice.terms, dict) else {}
    knew = f"memory {terms.get('memory', '?')!s}, which knew {terms.get('observations', 0)} observations"
    said = [f"drawn by {choice.policy} with seed {choice.seed} from {knew}"]
    ranked = sorted(choice.distribution.items(), key=lambda item: -item[1])
    directions = terms.get("directions", {})
    for name, probability in ranked[:MOST]:
        said.append(f"{name}: probability {probability:.3f}{_because(directions.get(name, {}))}")
    for name, term in terms.get("strategies", {}).items():
        if "score" in term:
            said.append(f"{name} scored {term['score']:.3f}{_because(term)}")
    return said


def _because(term: Mapping[str, Json]) -> str:
    if "utility" not in term:
        return ""
    product = f"success {_n(term, 'success'):.2f} × reward {_n(term, 'reward'):.2f}"
    evidence = f"{_n(term, 'kernels'):.0f} kernels, {_n(term, 'nearest'):.0f} in this context"
    parts = [f": utility {_n(term, 'utility'):.3f} ({product}, from {evidence})"]
    if "path" in term:
        parts.append(f"path {_n(term, 'path'):+.3f}")
    if _n(term, "penalty"):
        parts.append(f"repeats {-_n(term, 'penalty'):+.3f}")
    if "bonus" in term:
        parts.append(f"exploration {_n(term, 'bonus'):+.3f}")
    return ", ".join(parts)


def _n(term: Mapping[str, Json], key: str) -> float:
    value = term.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0
