"""The engine: it starts servers and workers, and handles their events."""
