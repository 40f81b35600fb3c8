"""What happens to files when all clients have come to their end."""
