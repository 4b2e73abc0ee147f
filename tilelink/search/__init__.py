"""Schedule search: a space of points, strategies that walk it, and the result.

space = Space.of([program], dims=..., ranks=8, target=target("sm_90"), dtype="bf16")
found = search(space, lambda plan: simulate(plan, machine).seconds, strategy("annealing"), budget_s=60)
found.ranking[0].schedule
"""

from tilelink.search.points import Candidate, Points
from tilelink.search.run import Found, Tried, search, walk
from tilelink.search.space import Space
from tilelink.search.strategies import STRATEGIES, Strategy, strategy

__all__ = ["STRATEGIES", "Candidate", "Found", "Points", "Space", "Strategy", "Tried", "search", "strategy", "walk"]
