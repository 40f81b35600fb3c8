"""The benchmark: what tidings does, beside what the machine under it could do at most.

A figure alone says more about the machine than about the program, so every scenario runs in turns with the
limit that it is compared to: scenario, limit, scenario, limit. The ratio of the two survives a slower
machine; the absolute figure does not. The broker and its clients are processes of their own, as they
are in real life; this process only directs them.

    figures            what was measured, its limit, its target, and the arithmetic between them
    plan               how much of everything, in full, quick or scaled down
    limits             the bare loops: write and fdatasync, ZeroMQ echo and stream, memory copy
    worker, jobs       a process that does what it is told; the client's side of the scenarios
    processes          starts and ends brokers and workers
    commits            which commits a journal holds, and how large they are
    scenarios, backlog the scenarios
    group              three replicas, when they are asked for
    overlay            how fast the simulator of overlays is, when it is asked for
    spark, spark_jobs  the same for Spark, when it is asked for
    neighbours         how much of the machine others had meanwhile
    report, plot       table, JSON and picture
"""
