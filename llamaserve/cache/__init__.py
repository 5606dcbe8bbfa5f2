"""What is kept of computed prompts: who holds which tokens, and copies of them outside the KV cache."""
