"""What only a GPU shows."""
