"""The local engine: all clients in one process, on one device."""
