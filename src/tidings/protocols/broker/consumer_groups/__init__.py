"""Consumer groups at the broker: who is a member, who gets which messages, and what has been acked.

`sharing` speaks with members; `coordinators` offers a topic's messages; `lanes` decides who gets them, with
`distribution` (free lanes go to the least loaded), `key_handoff` (a lane goes from one member to another), `picking`
(batches) and `claims` (what members say they have after a restart). `groups` and `progress` are journaled; the rest is
decided again after a restart.
"""
