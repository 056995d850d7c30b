"""Several processes on one machine, each with a device and some of the clients; the parent process is the server."""
