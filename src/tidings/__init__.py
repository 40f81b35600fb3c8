"""tidings: a reliable publish-subscribe service for Python."""
