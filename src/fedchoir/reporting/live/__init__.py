"""The live page: shows the runs of a folder in a browser while they are running."""
