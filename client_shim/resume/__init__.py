"""What a run in the client's process needs to go on where an earlier process of it was interrupted."""
