"""What of generated code is ours, and what is read from it: the wrapper, its registration, its cache key."""
