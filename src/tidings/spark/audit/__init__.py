"""Audits: Spark jobs that prove that nothing was lost, doubled or reordered, and find the fault when something was.

Every audit compares what was published (a topic's journal, or the lake's bronze table) with where it should have
arrived: the lake, another topic, the subscribers' own records. docs/audit.md says what is proven, and what is not.
"""
