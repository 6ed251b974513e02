"""The engine's side: it starts servers and workers, and decides what follows from their events."""
