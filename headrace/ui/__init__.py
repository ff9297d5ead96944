"""Pages of your own in the console, in a few lines: `@app.page("/map")`, and these helpers in the function.

Each is bound to a stream, a table or `rows(…)`, and brought up to date once a second. NiceGUI's own elements can
be used beside them. `reader` has the threads that read, `feed` and `rows` what they read, `widget` what all
helpers are. See docs/ui.md.
"""

from headrace.ui.bars import bars
from headrace.ui.counters import counter
from headrace.ui.grids import table
from headrace.ui.layout import card, row, text, visit
from headrace.ui.lines import line
from headrace.ui.maps import map
from headrace.ui.rows import rows

__all__ = ["bars", "card", "counter", "line", "map", "row", "rows", "table", "text", "visit"]
