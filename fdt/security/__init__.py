"""Who may call whom: tokens, certificates, TLS."""
