"""Several processes on one machine, each with a device and a share of the clients; the first one plays the server."""
