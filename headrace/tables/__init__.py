"""Tables: the latest value per key of a compacted stream."""
