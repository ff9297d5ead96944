"""Fixtures that the tests of pipelines share."""

from pipelines.shop import shop

__all__ = ["shop"]
