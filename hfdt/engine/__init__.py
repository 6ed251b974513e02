"""The engine's side: it starts the ranks, and decides what follows from their events."""
