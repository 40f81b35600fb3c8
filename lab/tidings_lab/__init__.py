"""The laboratory of tidings: what measures it, what proves it, and what shows it.

    bench              `tidings bench`: what tidings does beside the limits of the machine
    experiments        `tidings experiment` and `tidings simulate --sweep`: many simulations, their tables and charts
    simulated_overlay  the bare overlay in virtual time: worlds of `tidings simulate`, and for experiments
    simulated_replicas bare replicas in virtual time: the world `paxos` of `tidings simulate`
    simulated_service  a whole ring of replica groups in virtual time, for experiments
    bugs               `tidings simulate --mutant`: planted bugs, each of which a checker has to find
    demo               `tidings demo`: shops, a billing department, kill -9, and a count of what was lost
    commands           the command line of these; `tidings` finds it by the entry points in lab/pyproject.toml

Nothing that runs a bus needs it. It knows the inside of tidings, so both have the same version.
"""
