"""The console's browser, for pages of applications."""

from console.conftest import browser, open_page

__all__ = ["browser", "open_page"]
