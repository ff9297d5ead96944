"""Services: asyncio handlers on streams and on HTTP, sessions with state, beside local tables."""
