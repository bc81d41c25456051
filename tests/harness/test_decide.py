"""Kept or discarded."""

from __future__ import annotations

import pytest

from tilewright.harness.decide import decide, speedup
from tilewright.harness.types import CaseTime, Decision, Failure, How, Receipt, Status, Verdict


def verdict(*times_us: float, timed: How = How.MODELLED, status: Status = Status.PASS) -> Verdict:
    return Verdict(
        status=status,
        correct=How.INTERPRETER,
        timed=timed,
        times=tuple(CaseTime(case=f"case {i}", weight=1.0, time_us=t, floor_us=1.0) for i, t in enumerate(times_us)),
    )


def test_speed_up_is_the_geometric_mean_over_cases() -> None:
    assert speedup(verdict(4.0, 9.0), verdict(1.0, 9.0)) == pytest.approx(2.0)


def test_weights_count_as_repetitions_would() -> None:
    base = Verdict(
        status=Status.PASS,
        timed=How.MEASURED,
        times=(
            CaseTime(case="a", weight=3.0, time_us=8.0, floor_us=1.0),
            CaseTime(case="b", weight=1.0, time_us=5.0, floor_us=1.0),
        ),
    )
    new = Verdict(
        status=Status.PASS,
        timed=How.MEASURED,
        times=(
            CaseTime(case="a", weight=3.0, time_us=4.0, floor_us=1.0),
            CaseTime(case="b", weight=1.0, time_us=5.0, floor_us=1.0),
        ),
    )
    assert speedup(base, new) == pytest.approx(2.0 ** (3 / 4))


def test_a_modelled_time_is_never_compared_with_a_measured_one() -> None:
    assert speedup(verdict(4.0), verdict(1.0, timed=How.MEASURED)) is None
    decision, why = decide(verdict(4.0), verdict(1.0, timed=How.MEASURED), Receipt.REALISED)
    assert decision is Decision.DISCARDED
    assert "not comparable" in why


@pytest.mark.parametrize(
    ("timed", "time_us", "receipt", "decision"),
    [
        (How.MODELLED, 94.9, Receipt.REALISED, Decision.KEPT),
        (How.MODELLED, 95.1, Receipt.REALISED, Decision.DISCARDED),
        (How.MODELLED, 50.0, Receipt.REFUTED, Decision.DISCARDED),
        (How.MODELLED, 50.0, Receipt.INDETERMINATE, Decision.DISCARDED),
        (How.MODELLED, 50.0, None, Decision.DISCARDED),
        (How.MEASURED, 98.9, Receipt.REFUTED, Decision.KEPT),
        (How.MEASURED, 99.5, Receipt.REALISED, Decision.DISCARDED),
    ],
)
def test_a_candidate_is_kept_only_for_a_gain_that_can_be_trusted(
    timed: How, time_us: float, receipt: Receipt | None, decision: Decision
) -> None:
    assert decide(verdict(100.0, timed=timed), verdict(time_us, timed=timed), receipt)[0] is decision


def test_a_gain_on_one_case_does_not_pay_for_a_loss_on_another() -> None:
    decision, why = decide(
        verdict(100.0, 100.0, timed=How.MEASURED), verdict(10.0, 103.0, timed=How.MEASURED), Receipt.REALISED
    )
    assert decision is Decision.DISCARDED
    assert "case 1 got 3.0% slower" in why


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.PASS])
def test_nothing_but_a_pass_is_kept(status: Status) -> None:
    new = Verdict(
        status=status,
        failure=Failure.WRONG if status is Status.FAIL else None,
        timed=How.MODELLED,
        times=verdict(1.0).times,
        detail="the sum is off",
    )
    decision, why = decide(verdict(100.0), new, Receipt.REALISED)
    assert decision is Decision.DISCARDED
    assert "the sum is off" in why


def test_a_missing_case_makes_two_verdicts_incomparable() -> None:
    assert decide(verdict(100.0, 100.0), verdict(10.0), Receipt.REALISED)[0] is Decision.DISCARDED
