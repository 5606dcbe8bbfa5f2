"""What the server says of its own routes."""
