"""Ranks strategies for one candidate: cards, signs and rewrites put together."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from tilewright.harness.types import KernelFacts, Standing, Target, sha256
from tilewright.knowledge.cards import Cards, Strategy
from tilewright.knowledge.rewrites import Edit, Rewrite, Situation, launched
from tilewright.knowledge.vocabulary import CEILINGS, Value, evaluate
from tilewright.skills.triage.answers import Attempt, Hypothesis, Ranking, RuledOut, Symptom
from tilewright.skills.triage.classify import bottleneck, family
from tilewright.skills.triage.predicates import PREDICATES, source_signs
from tilewright.skills.triage.reading import Lines, Module

ODDS = 1.5
"""How much one sign that holds multiplies the odds that a strategy pays; a guess until memory has better."""
MOST_SIGNS = 3
"""Signs that count: further ones say the same again."""
LABELS = 3
WELL = frozenset({"faster", "kept", "INFRA", "unsupported"})
"""Outcomes after which a strategy is no dead end: it worked, or nobody knows."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What was looked for and found."""

    held: Mapping[str, str]
    """Signs that hold, with the evidence."""
    absent: frozenset[str]
    """Signs that were looked for and do not hold. All others are unknown."""
    lines: Mapping[str, Lines]


def look(module: Module, kernels: Sequence[KernelFacts], target: Target, cards: Cards) -> Signs:
    """Evaluate every sign that can be evaluated from source and facts.

    Operators of PyTorch's own in the launch code count among a call's launches; nobody here can rewrite them,
    so their own facts are no symptoms.
    """
    own = [k for k in kernels if not k.facts.get("torch_op")]
    seen = source_signs(module)
    held = {name: where.words for name, where in seen.items()}
    absent = set(PREDICATES) - set(seen)
    for sign in cards.signs.values():
        if sign.kind != "symptom":
            continue
        answers = [(k, evaluate(sign.holds, values(k, kernels, target))) for k in own]
        if true := [k for k, answer in answers if answer is True]:
            held[sign.id] = _numbers(sign.holds, true[0], values(true[0], kernels, target))
        elif any(answer is not None for _, answer in answers):
            absent.add(sign.id)
    return Signs(held=held, absent=frozenset(absent), lines={name: where.lines for name, where in seen.items()})


def values(k: KernelFacts, kernels: Sequence[KernelFacts], target: Target) -> dict[str, Value]:
    """Facts of one kernel, of its call as a whole, and the target's ceilings, by name."""
    x, y, z = k.grid
    same = [other for other in kernels if other.case == k.case]
    ceilings = {name: value for name, value in asdict(target).items() if name in CEILINGS}
    whole = {"programs": x * y * z, "launches": sum(s.launches for s in same), "kernels": len({s.kernel for s in same})}
    return {**k.facts, **ceilings, **whole}


def rank(
    source: str,
    module: Module,
    situation: Situation,
    attempts: Sequence[Attempt],
    tried: Collection[str],
    limit: int,
    cards: Cards,
    rewrites: Mapping[str, Rewrite],
) -> Ranking:
    """The ranking. `tried` are SHA-256 of candidates that were judged before."""
    signs = look(module, situation.kernels, situation.target, cards)
    found: list[Hypothesis] = []
    out: list[RuledOut] = []
    broken: list[str] = []
    dead = {a.strategy: a for a in attempts if a.candidate == sha256(source) and a.outcome not in WELL}
    hot = _hot([k for k in situation.kernels if not k.facts.get("torch_op")])
    bounds = values(hot, situation.kernels, situation.target) if hot else {}
    for card in cards.strategies.values():
        if why := excluded(card, signs, dead.get(card.id)):
            out.append(RuledOut(strategy=card.id, why=why))
            continue
        edits: list[Edit] = []
        if card.rewrite:
            edits, why = _edits(rewrites[card.rewrite], source, situation, tried, broken)
        elif not any(name in signs.held for name in card.when):
            why = "none of its signs holds: " + ", ".join(card.when)
        if why:
            out.append(RuledOut(strategy=card.id, why=why))
        else:
            found.append(_hypothesis(card, signs, edits, bounds))
    found.sort(key=lambda h: (-h.score, h.strategy))
    notes = [f"{len(found) - limit} more hypotheses were left off"] if len(found) > limit else []
    if not found:
        notes.append("no known pattern fits: profile next")
    return Ranking(
        family=family(module),
        bottleneck=bottleneck(situation.kernels, situation.target),
        symptoms=[
            Symptom(sign=name, meaning=cards.signs[name].meaning, evidence=evidence)
            for name, evidence in signs.held.items()
        ],
        hypotheses=found[:limit],
        ruled_out=out,
        standing=Standing.SUPPORTED if found else Standing.INCONCLUSIVE,
        note="; ".join([*notes, *broken]),
    )


def excluded(card: Strategy, signs: Signs, failed: Attempt | None) -> str:
    """Why a strategy is not offered; empty when it may be."""
    if missing := [name for name in card.needs if name in signs.absent]:
        return f"it needs {missing[0]}, which does not hold"
    if against := [name for name in card.unless if name in signs.held]:
        return f"{against[0]} holds: {signs.held[against[0]]}"
    if failed is None:
        return ""
    # The same diagnosis would lead to the same dead end; a sign that is new since may not.
    before = set(failed.diagnosis) if failed.diagnosis else set(signs.held)
    fresh = [name for name in card.reopens_when if name in signs.held and name not in before]
    return "" if fresh else f"it was tried on this very candidate: {failed.outcome}"


def support(card: Strategy, signs: Signs) -> float:
    """Probability that a strategy pays: its prior with the odds moved by the signs that were looked for.

    Each sign that holds, up to three, multiplies the odds by `ODDS`; when some could be looked for and none
    holds, the odds are divided by it.
    """
    held = sum(name in signs.held for name in card.when)
    looked = held + sum(name in signs.absent for name in card.when)
    power = min(held, MOST_SIGNS) if held else -1 if looked else 0
    odds = card.prior.success / max(1e-9, 1 - card.prior.success) * ODDS**power
    return odds / (1 + odds)


def _edits(
    rewrite: Rewrite, source: str, situation: Situation, tried: Collection[str], broken: list[str]
) -> tuple[list[Edit], str]:
    """What a rewrite offers that was not judged yet, or why it offers nothing."""
    try:
        found = rewrite.look(source, situation)
    # A rewrite meets kernels that nobody has thought of. Where it breaks, the others still stand, and the
    # answer says so in its note, with which and how.
    except Exception as failure:
        broken.append(f"rewrite {rewrite.name} broke: {type(failure).__name__}: {failure}"[:300])
        return [], broken[-1]
    if not found.edits:
        return [], "; ".join(found.refused[:2]) or f"its precondition is not met: {rewrite.precondition}"
    running = launched(found.edits, situation)
    if not running:
        return [], "it applies only to kernels that no case of the task launches"
    fresh = [edit for edit in running if sha256(edit.source) not in tried]
    return fresh, "" if fresh else f"all {len(running)} of its edits were judged before"


def _hypothesis(card: Strategy, signs: Signs, edits: Sequence[Edit], bounds: Mapping[str, Value]) -> Hypothesis:
    because = [name for name in card.when if name in signs.held]
    lines = edits[0].lines if edits else next((signs.lines[n] for n in because if n in signs.lines), None)
    at_most = evaluate(card.bound, bounds) if card.bound and bounds else None
    probability = support(card, signs)
    return Hypothesis(
        strategy=card.id,
        direction=card.direction,
        title=card.title,
        support=round(probability, 6),
        score=round(probability * card.prior.reward, 6),
        lines=lines,
        because=because,
        edit=card.edit,
        expected=card.expected,
        at_most=round(at_most, 3) if isinstance(at_most, (int, float)) and at_most > 1 else None,
        risk=edits[0].risk if edits else card.risks,
        verify=edits[0].claim if edits else card.verify,
        rewrite=card.rewrite,
        edits=len(edits),
        labels=[edit.label for edit in edits[:LABELS]],
    )


def _hot(kernels: Sequence[KernelFacts]) -> KernelFacts | None:
    """The kernel that moves the most bytes: the one that bounds are computed for."""

    def moved(k: KernelFacts) -> float:
        parts = (k.facts.get("load_bytes"), k.facts.get("store_bytes"))
        return k.launches * sum(float(p) for p in parts if isinstance(p, (int, float)))

    return max(kernels, key=moved) if kernels else None


def _numbers(expression: str, k: KernelFacts, known: Mapping[str, Value]) -> str:
    names = dict.fromkeys(n for n in re.findall(r"[a-z_0-9]+", expression) if n in known)
    return f"{k.kernel} in {k.case}: " + ", ".join(f"{n} {known[n]}" for n in names)
