"""The live page: this user's runs, attached and detached, in a browser on this machine."""
