"""A ring of replica groups as its operators and its users see it.

`asking` speaks to single nodes, `survey` puts together what all of them say, `trial` runs a whole ring on one machine,
`drive` is the client that issues commands by lot and counts what comes, and `trace` follows one message.
"""
