"""Every number that memory decides with, and the reason for it. docs/memory.md has the formulas."""

from __future__ import annotations

import math

KAPPA_SUCCESS = 4.0
"""Pseudo-count of a prior success probability: four kernels' worth of evidence outweigh what is believed."""

KAPPA_REWARD = 3.0
"""Pseudo-count of a prior mean reward. Lower, since rewards given success vary less than success itself."""

KAPPA_EDGE = 6.0
"""Pseudo-count of a transition's residual. Higher than a node's: a residual is a small difference of noisy
numbers, and most transitions mean nothing."""

KAPPA_COST = 4.0
"""Pseudo-count that draws a node's mean cost towards the mean of all."""

COST_RANGE = 2.0
"""A node's cost changes its utility by at most this factor either way: a cheap step that never pays must not
win, and one slow measurement must not bury a direction."""

WINDOW = 4
"""Accepted moves that are looked back on (m). What lies further back has been overwritten by later edits."""

DECAY = 1.5
"""δ of the position weights exp(-(i-1)/δ): the newest move weighs twice the one before it."""

START_WEIGHT = 0.1
"""Share of the prefix's weight that START keeps, so that what is known of whole lineages never vanishes."""

REPEAT_PENALTY = 0.05
"""ρ, in reward per step and for each time the direction stands in the window: about what a step is worth when
a direction has just been used, so that equally good others get their turn."""

FAVOURITE_LEAD, FAVOURITE_AMONG, FAVOURITE_SHARE = 0.3, 9, 0.6
"""What calibrates the temperature: a favourite that is 0.3 of reward ahead of eight equals is drawn at least
60 % of the time, even at the start of the budget."""

TAU_START = FAVOURITE_LEAD / math.log(FAVOURITE_SHARE / (1 - FAVOURITE_SHARE) * (FAVOURITE_AMONG - 1))
"""Softmax temperature at the start of the budget; the calibration solved for τ (0.121)."""

TAU_END = TAU_START / 4
"""At the end of the budget, where there is no later step left for which to explore."""

BONUS = 0.10
"""Exploration bonus of a strategy never seen, in reward per step: half of what a good strategy is worth."""

FLAT_ENOUGH = 8
"""`flat` retrieves rounds of the most similar context that has at least this many kernels' worth of them."""

FLAT_KAPPA = 2.0
"""Pseudo-count of the prior in `flat`: retrieval trusts what it finds more than a shrunken estimate does."""

THOMPSON_DRAWS = 256
"""Draws from the posteriors behind the recorded distribution; the first of them is the move."""

PPM = 1_000_000
"""Fixed point: rewards, weights and means are integers in parts per million, so that sums are exact in any order."""
