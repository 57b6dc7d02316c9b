"""What scripts/bench can measure. A bench is a function that yields the rows of its part of the table."""

from benchmarks.checkpoint import bench_checkpoint
from benchmarks.control import bench_control
from benchmarks.ddp import bench_ddp, bench_gpu
from benchmarks.etcd import bench_etcd
from benchmarks.frameworks import bench_frameworks
from benchmarks.launch import bench_hooks, bench_launch, bench_link, bench_memory, bench_restart
from benchmarks.hang import bench_hang
from benchmarks.loader import bench_loader
from benchmarks.missing import bench_missing
from benchmarks.nodes import bench_nodes
from benchmarks.optim import bench_optim
from benchmarks.output import bench_output
from benchmarks.replace import bench_replace
from benchmarks.replace_nccl import bench_replace_nccl
from benchmarks.shm import bench_shm
from benchmarks.standby import bench_standby
from benchmarks.standby_program import bench_standby_program
from benchmarks.snapshots import bench_snapshots
from benchmarks.start import bench_start
from benchmarks.store import bench_store
from benchmarks.torch_shm import bench_torch_shm
from benchmarks.trainer import bench_trainer
from benchmarks.watch import bench_watch

BENCHES = {"launch": bench_launch, "restart": bench_restart, "memory": bench_memory, "output": bench_output,
           "link": bench_link, "hooks": bench_hooks, "nodes": bench_nodes, "etcd": bench_etcd, "start": bench_start,
           "ddp": bench_ddp, "gpu": bench_gpu, "missing": bench_missing, "store": bench_store,
           "checkpoint": bench_checkpoint, "loader": bench_loader, "trainer": bench_trainer, "optim": bench_optim,
           "shm": bench_shm, "torch-shm": bench_torch_shm, "control": bench_control, "watch": bench_watch,
           "hang": bench_hang, "standby": bench_standby, "standby-program": bench_standby_program,
           "frameworks": bench_frameworks,
           "replace": bench_replace, "replace-nccl": bench_replace_nccl, "snapshots": bench_snapshots}
