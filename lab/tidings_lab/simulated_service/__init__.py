"""A whole ring of replica groups in virtual time, and its virtual nodes alone: runs, loads and message counts."""
