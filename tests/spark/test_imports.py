"""What the processes of Spark import, of which every query starts several."""

from __future__ import annotations

from tests.integration.programs import run_program


def test_planning_does_without_pandas() -> None:
    """Arrow imports it when it makes its first array of Python objects; it takes longer than all of ours."""
    done = run_program(
        """
        import sys
        import tidings.pipeline.source, tidings.spark.audit.records, tidings.spark.source
        sys.exit("pandas" in sys.modules)
        """
    )
    assert done.returncode == 0, done.stderr
