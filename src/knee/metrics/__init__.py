"""A server's own signals: exposition text or log lines → snapshot → window."""
