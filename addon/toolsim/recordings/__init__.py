"""Records exchanges without their secrets, and compares, replays, serves and exports the recordings."""
