"""A rank of a test on GPUs: `torchrun ... -m tests.gpu.worker SCENARIO`; its exit status is 0 if all is well."""

import os
import sys
import traceback

import torch
import torch.distributed as dist

from tests.gpu import scenarios


def main(name: str) -> int:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    try:
        getattr(scenarios, name)()
        torch.cuda.synchronize()
        dist.barrier(device_ids=[rank])
        status = 0
    except Exception:
        print(f"rank {rank}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        status = 1
    sys.stdout.flush()
    os._exit(status)  # a rank that failed must not wait for the others in an orderly shutdown


if __name__ == "__main__":
    main(sys.argv[1])
