"""Memory: statistics folded from observations, and the choice of the next move from them."""

from tilewright.knowledge.memory.choose import Chosen, Offer, choose
from tilewright.knowledge.memory.statistics import Statistics, fold
from tilewright.knowledge.memory.switches import Switches

__all__ = ["Chosen", "Offer", "Statistics", "Switches", "choose", "fold"]
