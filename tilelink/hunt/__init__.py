"""Hunt for launches that are slower than they should be: a search over workloads, and what explains each case.

found = hunt(subjects, strategy("evolution"), points=200, seed=0)
print(text(found))

Collie (NSDI 2022) hunts for the workloads on which a network misbehaves: a search over what an application can vary,
by how far a measurement is from what it should be, and for each anomaly the least set of conditions under which it
appears. Here a point is a launch (sizes, ranks, schedule, element type, routing, how it is launched and how late a rank
is), and the simulator, or GPUs, say how long it takes.
"""

from tilelink.hunt.anomaly import KINDS, Anomaly, Rated
from tilelink.hunt.cases import Case, Hunted, hunt
from tilelink.hunt.report import as_json, markdown, text

__all__ = ["KINDS", "Anomaly", "Case", "Hunted", "Rated", "as_json", "hunt", "markdown", "text"]
