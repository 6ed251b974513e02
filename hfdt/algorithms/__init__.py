"""The synchronous algorithms of HFDT, one in each file."""
