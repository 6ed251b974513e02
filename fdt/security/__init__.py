"""Authentication and encryption between processes: tokens, certificates, TLS."""
