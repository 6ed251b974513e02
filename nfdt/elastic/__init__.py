"""Workers that join a run: `nfdt run --join-at` takes them (reception.py), `nfdt join` offers them (guest.py).

They are members as any (fdt/supervise/elastic_workers.py): the same module, the same sessions. They are told what the
launcher
would have told them, over a call of their own with a token of its own.
"""
