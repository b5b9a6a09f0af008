"""A server's page, JSON, metrics and health, over HTTP; knows nothing of what servers do."""
