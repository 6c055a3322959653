"""Starts SGLang's server where there is no CUDA, with one of its attributes off, so that page indices are computed on the host.

At the level of the module, because the scheduler's process imports this file again.
"""

import sys

import sglang.srt.disaggregation.mooncake.conn as connection

connection.MooncakeKVSender.supports_host_tensor_indices = False

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
