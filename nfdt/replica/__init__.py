"""NFDT for scripts with training loops of their own: see client_shim/replica.

Each worker takes whole batches of the stream in turn. The parameter server is rank 0, the user's own process: where it
applies its own gradient it also applies those that have come, one by one, with the script's optimizer, and answers with
weights. So its variables are the server's, and what the script does with them once is done with trained weights.
"""
