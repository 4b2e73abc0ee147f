"""Where the choices of a mixture of experts go, without the host: `by_expert` and what it returns."""

from tilelink.ops.routing import Routing, by_expert

__all__ = ["Routing", "by_expert"]
