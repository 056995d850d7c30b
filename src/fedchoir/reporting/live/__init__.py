"""The live page: the runs of a folder, served on this machine and followed while they go on."""
