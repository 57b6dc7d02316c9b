"""Every private name of PyTorch that this package uses, with what for. tests/compat/python_torch_names.py keeps the list
complete. A PyTorch that lacks one of NEEDED is refused by recoverable(), by name."""

import importlib

TRIED = ("2.11", "2.15")  # versions of PyTorch with which all tests were run

# {module or class: {name: what it is used for}}
NEEDED = {
    "torch.distributed.distributed_c10d": {
        "_new_process_group_helper": "groups.py notes, and stands in for, the groups of a program; hooks.py and ddprun.torch likewise",
        "_get_default_group": "groups.py makes the group of all ranks anew",
        "_update_default_pg": "groups.py hides that group behind a step that is made again",
        "_world": "groups.py: names and backends of groups",
    },
    "torch.distributed": {
        "_compute_bucket_assignment_by_size": "worker_state.py gives a new reducer the buckets of the one before",
    },
    "torch._C._distributed_c10d": {
        "_create_work_from_future": "groups.py: calls of a group that answers nothing",
    },
    "torch.utils": {
        "_pytree": "agreement.py and recovery.py look for tensors in inputs and outputs of a model",
    },
    "torch": {
        "_foreach_copy_": "worker_state.py copies buffers",
    },
    "torch.nn.parallel.DistributedDataParallel": {
        "_build_debug_param_to_name_mapping": "worker_state.py makes the reducer anew",
        "_build_params_for_reducer": "likewise",
        "_ddp_init_helper": "likewise",
        "_get_ddp_logging_data": "worker_state.py reads the buckets that a reducer has arranged",
    },
    "torch.autograd.Variable": {
        "_execution_engine": "recovery.py sees that a backward() has come to its end",
    },
    "torch.Tensor": {
        "_version": "loading.py and worker_state.py see that a tensor was written into",
    },
}

# Looked for on objects, whose lack means that there is nothing to do.
OPTIONAL = {
    "_allgather_base": "of a ProcessGroup: groups.py, calls of a group that answers nothing",
    "_reduce_scatter_base": "likewise",
    "_delay_all_reduce_params": "of a DistributedDataParallel: recovery.py refuses it",
    "_use_python_reducer": "likewise",
    "_comm_hooks": "of a DistributedDataParallel: recovery.py refuses hooks",
    "_has_rebuilt_buckets": "of a DistributedDataParallel: worker_state.py lets it arrange its buckets anew",
    "_in_backward_optimizers": "of a parameter: recovery.py refuses optimizers that step inside of backward()",
    "_opt_called": "of an optimizer: worker_state.py spares the program a scheduler's warning",
    "_optimizer_step_post_hooks": "of an optimizer: recovery.py refuses one that has not called PyTorch's constructor",
    "_orig_mod": "of a compiled model: recovery.py refuses it by name",
    "_per_optimizer_states": "of a GradScaler: worker_state.py forgets what belongs to a step that is made again",
    "_generate_state": "of torch.utils.data._utils.worker: loading.py seeds the loader's processes as PyTorch does",
    "_get_default_store": "of distributed_c10d: keeping.py compares what ranks keep",
    "_comm_ptr": "of a backend of NCCL: nccl.py ends the calls of its communicator",
    "_local_ranks_filter": "of LogsSpecs: as_torchrun.py gives ddprun the same logs",
    "_redirects": "likewise",
    "_tee": "likewise",
    "_get_backend": "of a ProcessGroup: collectives.py asks for Gloo's, groups.py for NCCL's, ddprun.torch puts shm beside it",
    "_register_backend": "of a ProcessGroup: ddprun.torch",
    "_get_sequence_number_for_group": "of a ProcessGroup: collectives.py numbers its calls; of a backend of NCCL: nccl.py counts them",
    "_get_op_type": "of a Work: collectives.py names its call",
    "_dump_fr_trace_json": "of torch._C._distributed_c10d: collectives.py reads NCCL's flight record",
    "_torchdynamo_disable": "of a function: collectives.py keeps its wrappers out of compiled graphs",
}


def missing():
    """A sentence on the first of NEEDED that this PyTorch lacks; None: all are there."""
    import torch
    for place, names in NEEDED.items():
        try:
            owner = importlib.import_module(place)
        except ModuleNotFoundError:
            module, _, name = place.rpartition(".")
            owner = getattr(importlib.import_module(module), name, None)
        for name in names:
            if not hasattr(owner, name):
                return f"PyTorch {torch.__version__} has no {place}.{name} (tried: {', '.join(TRIED)})"
    return None
