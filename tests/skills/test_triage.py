"""Triage: what it sees on a kernel, what it makes of facts, and what it leaves out and why."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tilewright.harness.host import Host
from tilewright.harness.types import Claim, Evidence, KernelFacts, Standing, sha256
from tilewright.knowledge.cards import load
from tilewright.knowledge.rewrites import NAMES, Edit, Look, Rewrite, Situation
from tilewright.knowledge.targets import target
from tilewright.skills.triage.answers import Attempt, Hypothesis, Ranking
from tilewright.skills.triage.classify import bottleneck, family
from tilewright.skills.triage.predicates import PREDICATES, source_signs
from tilewright.skills.triage.rank import rank
from tilewright.skills.triage.reading import read

H200 = target("cuda:90")
HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"

ROW_SOFTMAX = (
    HEAD
    + """
@triton.jit
def kern(x_ptr, y_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * stride + cols, e / tl.sum(e, axis=0), mask=cols < n)


def launch(x):
    y = torch.empty_like(x)
    m, n = x.shape
    kern[(m,)](x, y, x.stride(0), n, BLOCK=triton.next_power_of_2(n), num_warps=4)
    return y
"""
)

LOOPED_NORM = (
    HEAD
    + """
@triton.jit
def kern(x_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    base = x_ptr + row * n
    total = 0.0
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(base + cols, mask=cols < n, other=0.0)
        total += tl.sum(x * x, axis=0)
    scale = tl.rsqrt(total / n + eps)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(base + cols, mask=cols < n, other=0.0)
        tl.store(y_ptr + row * n + cols, x * scale / n, mask=cols < n)


def launch(x, eps):
    y = torch.empty_like(x)
    kern[(x.shape[0],)](x, y, x.shape[1], eps, BLOCK=1024)
    return y
"""
)

MATMUL = (
    HEAD
    + """
@triton.autotune(configs=[triton.Config({"BM": 64, "BN": 64, "BK": 32})], key=["m"])
@triton.jit
def product(a, b, c, m, n, k, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)) % m
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in tl.range(0, k, BK, num_stages=3):
        ks = k0 + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * sa + ks[None, :]).to(tl.float32)
        y = tl.load(b + ks[:, None] * sb + cols[None, :])
        acc = tl.dot(x, y.to(tl.float32), acc, input_precision="ieee")
    wide = cols.to(tl.int64)
    tl.store(c + rows[:, None] * sc + wide[None, :], acc)


@triton.jit
def scale(c, out, s, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(c + i * s, mask=i < n), axis=0))


def launch(a, b):
    c = torch.zeros((a.shape[0], b.shape[1]))
    product[lambda m: (1, 1)](a, b.contiguous(), c, 1, 1, 1, 1, 1, 1)
    scale[(4,)](c, c, 2, 8, BLOCK=64)
    return c
"""
)


class Scripted:
    """A rewrite that offers what it was told to."""

    precondition, risk = "told to", "none"

    def __init__(
        self,
        name: str,
        labels: tuple[str, ...] = (),
        error: Exception | None = None,
        kernel: str | None = None,
    ) -> None:
        self.name, self.labels, self.error, self.kernel = name, labels, error, kernel

    def look(self, source: str, situation: Situation) -> Look:
        if self.error:
            raise self.error
        claim = Claim(fact="programs", relation="falls")
        edits = tuple(
            Edit(
                source=f"{source}# {label}\n",
                label=label,
                claim=claim,
                lines=(6, 9),
                risk="registers",
                kernel=self.kernel,
            )
            for label in self.labels
        )
        return Look(edits=edits, refused=() if self.labels else ("kern: nothing to rewrite",))


def ranked(source: str, kernels: tuple[KernelFacts, ...] = (), **changed: Any) -> Ranking:
    told: dict[str, Rewrite] = {name: Scripted(name) for name in NAMES}
    told.update(changed.pop("rewrites", {}))
    given = {"attempts": (), "tried": frozenset[str](), "limit": 32, **changed}
    situation = Situation(target=H200, kernels=kernels)
    return rank(source, read(source), situation, cards=load(), rewrites=told, **given)


def facts(grid: int = 4096, case: str = "c", kernel: str = "kern", launches: int = 1, **named: Any) -> KernelFacts:
    return KernelFacts(kernel=kernel, case=case, grid=(grid, 1, 1), launches=launches, facts=named, digest="")


def names(ranking: Ranking) -> list[str]:
    return [h.strategy for h in ranking.hypotheses]


def one(ranking: Ranking, strategy: str) -> Hypothesis:
    return next(h for h in ranking.hypotheses if h.strategy == strategy)


LOOPED_SIGNS = """
loop-over-blocks same-loads-in-two-loops reduction-in-loop tunable-launch masked-loop division-in-loop
"""
MATMUL_SIGNS = """
loop-over-blocks autotuned tunable-launch remainder-in-address strided-columns int64-offsets dot-in-loop
upcast-before-dot full-precision-dot staged-loop atomic-update several-launches torch-in-launch
"""


@pytest.mark.parametrize(
    ("source", "signs"),
    [(ROW_SOFTMAX, "whole-row-block tunable-launch"), (LOOPED_NORM, LOOPED_SIGNS), (MATMUL, MATMUL_SIGNS)],
)
def test_the_syntax_shows_these_signs_and_no_others(source: str, signs: str) -> None:
    assert set(source_signs(read(source))) == set(signs.split())


def test_every_source_sign_is_seen_somewhere_above() -> None:
    seen = {name for source in (ROW_SOFTMAX, LOOPED_NORM, MATMUL) for name in source_signs(read(source))}
    assert seen == set(PREDICATES)


def test_a_sign_points_at_its_lines() -> None:
    seen = source_signs(read(LOOPED_NORM))["same-loads-in-two-loops"]
    lines = LOOPED_NORM.splitlines()
    assert lines[seen.lines[0] - 1].strip() == "for start in range(0, n, BLOCK):"
    assert lines[seen.lines[1] - 1].strip().startswith("tl.store")


@pytest.mark.parametrize(
    ("source", "word"), [(ROW_SOFTMAX, "softmax"), (LOOPED_NORM, "normalisation"), (MATMUL, "matmul")]
)
def test_the_family_follows_from_what_is_computed(source: str, word: str) -> None:
    assert family(read(source)) == word


def test_operations_imported_by_name_or_under_another_alias_are_understood() -> None:
    renamed = LOOPED_NORM.replace("import triton.language as tl", "from triton import language as lang")
    renamed = renamed.replace("tl.", "lang.").replace("lang.rsqrt", "inverse_root")
    renamed = renamed.replace(
        "import triton\n", "import triton\nfrom triton.language.math import rsqrt as inverse_root\n"
    )
    assert "tl." not in renamed
    assert family(read(renamed)) == "normalisation"
    assert set(source_signs(read(renamed))) == set(LOOPED_SIGNS.split())


def test_the_bottleneck_is_the_resource_that_needs_longest_with_its_numbers() -> None:
    heavy = facts(unique_load_bytes=4 << 30, unique_store_bytes=4 << 30, fp32_flops=1 << 20)
    found = bottleneck([heavy], H200)
    assert (found.word, found.kernel, found.case) == ("dram", "kern", "c")
    assert found.terms_us["dram"] == pytest.approx(1e6 * (8 << 30) / H200.dram_bytes_per_s, rel=1e-3)
    tiny = facts(grid=1, launches=50, unique_load_bytes=64)
    assert bottleneck([tiny], H200).word == "launch"
    assert bottleneck([], H200).word == "unknown"


def test_symptoms_come_from_facts_with_the_numbers_that_show_them() -> None:
    told = ranked(
        LOOPED_NORM, (facts(load_bytes=200, reread_bytes=100, spill_bytes=0, loads_in_loop=2, async_copies=0),)
    )
    shown = {s.sign: s.evidence for s in told.symptoms}
    assert shown["rereads-in-program"] == "kern in c: reread_bytes 100, load_bytes 200"
    assert "loads-not-pipelined" in shown
    assert "spills" not in shown


def test_operators_of_pytorch_count_as_launches_and_are_not_blamed_for_their_grids() -> None:
    own = facts(spill_bytes=0)
    op = facts(grid=1, kernel="torch:sum", torch_op=True, spill_bytes=8)
    held = {s.sign for s in ranked(ROW_SOFTMAX, (own, op)).symptoms}
    assert "many-launches" in held
    assert not held & {"few-programs", "spills"}
    assert "few-programs" in {s.sign for s in ranked(ROW_SOFTMAX, (facts(grid=1),)).symptoms}


def test_a_strategy_gains_support_by_signs_that_hold_and_loses_it_when_all_are_absent() -> None:
    edits = {"one-pass": Scripted("one-pass", ("a",))}
    without = one(ranked(ROW_SOFTMAX, rewrites=edits), "one-pass").support
    bare = one(ranked(LOOPED_NORM, rewrites=edits), "one-pass").support
    more = one(ranked(LOOPED_NORM, (facts(load_bytes=200, reread_bytes=100),), rewrites=edits), "one-pass").support
    prior = load().strategies["one-pass"].prior.success
    assert without < prior < bare < more


def test_a_hypothesis_carries_what_is_needed_to_carry_it_out_and_to_check_it() -> None:
    told = ranked(
        LOOPED_NORM,
        (facts(load_bytes=200, reread_bytes=100, store_bytes=100),),
        rewrites={"one-pass": Scripted("one-pass", ("keep the row", "keep two rows"))},
    )
    best = one(told, "one-pass")
    assert (best.direction, best.rewrite, best.edits) == ("data-reuse", "one-pass", 2)
    assert best.labels == ["keep the row", "keep two rows"]
    assert best.lines == (6, 9)
    assert best.verify == Claim(fact="programs", relation="falls")
    assert best.because == ["same-loads-in-two-loops", "rereads-in-program"]
    assert best.at_most == 1.5
    assert told.standing is Standing.SUPPORTED
    assert [h.score for h in told.hypotheses] == sorted((h.score for h in told.hypotheses), reverse=True)


def test_a_strategy_without_a_rewrite_is_offered_to_whoever_writes_when_a_sign_holds() -> None:
    assert "loads-first" not in names(ranked(LOOPED_NORM))  # without facts none of its signs is known
    seen = one(ranked(LOOPED_NORM, (facts(loads_in_loop=2, async_copies=0),)), "loads-first")
    assert (seen.rewrite, seen.edits) == (None, 0)
    assert seen.verify == Claim(fact="registers", relation="rises")


def test_what_cannot_apply_is_ruled_out_with_the_reason() -> None:
    out = {r.strategy: r.why for r in ranked(MATMUL).ruled_out}
    assert out["pipeline-loop"].startswith("staged-loop holds")
    assert out["one-pass"] == "kern: nothing to rewrite"
    assert "multiply-by-reciprocal" in out
    assert set(out) | set(names(ranked(MATMUL))) == set(load().strategies)


def test_edits_that_were_judged_before_are_not_offered_again() -> None:
    edits = {"one-pass": Scripted("one-pass", ("a", "b"))}
    first = sha256(f"{LOOPED_NORM}# a\n")
    assert one(ranked(LOOPED_NORM, rewrites=edits, tried={first}), "one-pass").labels == ["b"]
    both = {first, sha256(f"{LOOPED_NORM}# b\n")}
    assert "one-pass" not in names(ranked(LOOPED_NORM, rewrites=edits, tried=both))


def test_a_dead_end_is_not_offered_again_unless_a_new_sign_reopens_it() -> None:
    edits = {"reduce-after-loop": Scripted("reduce-after-loop", ("a",))}
    failed = Attempt(strategy="reduce-after-loop", outcome="slower", candidate=sha256(LOOPED_NORM))
    seen = (facts(reduces_in_loop=1),)

    def offered(attempt: Attempt, kernels: tuple[KernelFacts, ...] = seen) -> bool:
        return "reduce-after-loop" in names(ranked(LOOPED_NORM, kernels, rewrites=edits, attempts=[attempt]))

    assert not offered(failed)
    assert offered(replace(failed, candidate=sha256("another")))
    assert offered(replace(failed, outcome="kept"))
    assert offered(replace(failed, diagnosis=["reduction-in-loop"]))  # reductions-in-loop is new, and reopens it
    assert not offered(replace(failed, diagnosis=["reduction-in-loop", "reductions-in-loop"]))
    assert not offered(replace(failed, diagnosis=["reduction-in-loop"]), ())


def test_a_rewrite_that_breaks_takes_only_itself_down_and_is_named() -> None:
    told = ranked(
        LOOPED_NORM,
        rewrites={
            "one-pass": Scripted("one-pass", error=KeyError("x")),
            "reduce-after-loop": Scripted("reduce-after-loop", ("a",)),
        },
    )
    assert "reduce-after-loop" in names(told)
    assert "rewrite one-pass broke: KeyError" in told.note


def test_nothing_that_fits_is_inconclusive_and_says_where_to_go_on() -> None:
    told = ranked(HEAD + "def launch(x):\n    return x\n")
    assert (told.standing, told.hypotheses, told.family) == (Standing.INCONCLUSIVE, [], "unknown")
    assert "profile next" in told.note


def test_the_limit_keeps_the_best_and_says_that_there_are_more() -> None:
    edits = {name: Scripted(name, ("a",)) for name in NAMES}
    whole, part = ranked(LOOPED_NORM, rewrites=edits), ranked(LOOPED_NORM, rewrites=edits, limit=2)
    assert names(part) == names(whole)[:2]
    assert f"{len(whole.hypotheses) - 2} more hypotheses" in part.note


def ask(**arguments: Any) -> Evidence:
    async def go() -> Evidence:
        async with Host() as host:
            return await host.ask("triage", "rank", {"entry": "launch", "target": "cuda:90", **arguments})

    return asyncio.run(go())


def test_over_mcp_the_real_rewrites_answer_for_a_real_kernel() -> None:
    told = ask(source=ROW_SOFTMAX)
    assert told.standing is Standing.SUPPORTED, told.note
    assert isinstance(told.answer, dict)
    assert "broke" not in told.note
    by_name = {h["strategy"]: h for h in told.answer["hypotheses"]}
    assert by_name["rows-per-program"]["edits"] > 0
    assert by_name["tile-search"]["verify"]["fact"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"source": "def launch(:\n"}, "line 1 of the source is not Python"),
        ({"source": "x = 1\n"}, "does not define launch"),
        ({"source": ROW_SOFTMAX, "target": "cuda:1"}, "cuda:1"),
        ({"source": ROW_SOFTMAX, "limit": 0}, "limit"),
        ({"source": ROW_SOFTMAX, "kernels": [{"kernel": "k"}]}, "kernels"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_the_reason(changed: dict[str, Any], says: str) -> None:
    told = ask(**changed)
    assert told.standing is Standing.UNAVAILABLE
    assert says in told.note


def test_an_edit_of_a_kernel_that_is_never_launched_is_not_offered() -> None:
    told = {"one-pass": Scripted("one-pass", ("a",), kernel="norm")}
    out = {r.strategy: r.why for r in ranked(LOOPED_NORM, (facts(kernel="another"),), rewrites=told).ruled_out}
    assert out["one-pass"] == "it applies only to kernels that no case of the task launches"
