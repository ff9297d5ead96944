"""The live page over a running app: what there is, what flows, what went wrong, and what can be done about it.

`watch` keeps up with the log, `console` is what pages are given, `server` serves them, `guard` lets visitors in,
`frame` is what all pages share, `parts` what they are made of. Each noun has a page of its
name. See docs/console.md.
"""
