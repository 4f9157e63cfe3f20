"""Runs llama.cpp's own server on one thread: server.py MODEL PORT SLOTS TOKENS. It ends when it is killed."""

import sys
import time

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel = int(sys.argv[3])
params.n_ctx = int(sys.argv[4])
params.endpoint_metrics = True
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
while True:
    time.sleep(1)
