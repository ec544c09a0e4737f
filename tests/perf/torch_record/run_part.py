"""One rank of one part of record_torch.py: run_part.py PART SETTINGS, which are JSON. On SIGUSR1 it writes where every thread is."""
import faulthandler
import importlib
import json
import signal
import sys

from job import Job

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    job = Job(json.loads(sys.argv[2]))
    job.begin()
    importlib.import_module(sys.argv[1]).run(job)
    job.end()
