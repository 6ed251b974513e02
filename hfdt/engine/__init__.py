"""The engine of HFDT: it starts the ranks and reacts to their events."""
