"""Operators' tools for replica groups and rings.

`asking` speaks to single nodes, `survey` puts together what all of them say, `trial` runs a whole ring on one machine
(`trial_record` is the file about it), `drive` is the client that issues random commands and counts what comes, and
`trace` follows one message.
"""
