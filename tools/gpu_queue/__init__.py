"""Run a queue of sweeps in stretches of GPU time, on a machine without network if need be.

    python -m tools.gpu_queue plan                                            # rows, runs left, minutes
    python -m tools.gpu_queue pack --first 3 --data-root DATA --out bundle/   # code, data and state, in parts
    python -m tools.gpu_queue run --first 3 --minutes 28 --jobs 4             # on the GPU machine: as many runs as fit
    python -m tools.gpu_queue save --out back/                                # on the GPU machine: results, checkpoints
    python -m tools.gpu_queue load back/                                      # here: joins what came back to the state
    python -m tools.gpu_queue merge                                           # finished runs into results/

``results/queue.toml`` lists the rows in order of value. The state folder holds the runs, their checkpoints and the
pretrained models that they share. In the last seconds of a stretch its runs end their round and write it; the next one
continues them with the same numbers. Ctrl-C and SIGTERM end a stretch in the same way; a second one kills the runs. On
the other machine, ``bash bundle/setup.sh DIR`` unpacks a bundle and prints how to go on: in DIR, with PYTHONPATH=src,
``run`` and ``save`` with ``--state state --data-root data``. ``pack`` and ``save`` delete nothing: ``--out`` may hold
several saves, and ``load`` takes the furthest state of each run.

The exit code is 2 for a wrong option or file, and 1 if a run failed, if something did not fit into ``--limit`` (the
rest is written), or if an archive or a run could not be loaded (the others are): an archive that is damaged or not
complete, a run that has other settings here or is being executed here. It is 130 or 143 after a second signal.
"""
