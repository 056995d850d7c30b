"""The kernels: code for the GPU. No module here imports torch, so a process that compiles kernels starts quickly."""
