"""The demonstration behind `tidings demo`: shops, a billing department, a dashboard, and kill -9."""
