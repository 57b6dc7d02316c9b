"""What scripts/bench can measure. A bench is a function that yields the rows of its part of the table."""

from benchmarks.checkpoint import bench_checkpoint
from benchmarks.control import bench_control
from benchmarks.ddp import bench_ddp, bench_gpu
from benchmarks.etcd import bench_etcd
from benchmarks.launch import bench_launch, bench_link, bench_memory, bench_restart
from benchmarks.loader import bench_loader
from benchmarks.nodes import bench_nodes
from benchmarks.output import bench_output
from benchmarks.shm import bench_shm
from benchmarks.start import bench_start
from benchmarks.store import bench_store
from benchmarks.trainer import bench_trainer
from benchmarks.watch import bench_watch

BENCHES = {"launch": bench_launch, "restart": bench_restart, "memory": bench_memory, "output": bench_output,
           "link": bench_link, "nodes": bench_nodes, "etcd": bench_etcd, "start": bench_start, "ddp": bench_ddp,
           "gpu": bench_gpu, "store": bench_store, "checkpoint": bench_checkpoint, "loader": bench_loader,
           "trainer": bench_trainer, "shm": bench_shm, "control": bench_control, "watch": bench_watch}
