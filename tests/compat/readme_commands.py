"""Command lines from the READMEs and scripts of public projects, under ddprun and under torchrun.

What the launcher sees matters: its options in the project's spelling, and words such as its programs take; arguments that
add nothing to that are left out. torchrun is also here where a project says `python -m torch.distributed.launch`, whose place
it took, or submitit (DINOv2). In the place of every script is one that writes down what it sees. Both must give it the same
arguments, variables and folder, and end with the same code. Commands for several nodes and many GPUs are for one node and
a few workers here. torchrun is the one of the Python that runs this, as in torchrun_options.py.

usage: readme_commands.py DDPRUN        (DDPRUN_TEST_FULL: all of them, otherwise every third)
"""

import json
import os
import pathlib
import shlex
import shutil
import sys
import tempfile
import types

import torch
from torchrun_options import Workplace, free_port

WORKER = """
import json, os, sys
saw = {"arguments": sys.argv, "folder": os.getcwd(), "name": __name__, "unbuffered": sys.stdout.write_through,
       "environment": {name: value for name, value in os.environ.items() if name.split("_")[0] in NAMES}}
with open(os.path.join(os.environ["OUT_DIR"], os.environ["RANK"] + ".json"), "w") as file:
    json.dump(saw, file)
sys.exit(int(os.environ.get("CODE", "0")))
"""
NAMES = {"LOCAL", "RANK", "WORLD", "ROLE", "GROUP", "MASTER", "OMP", "TORCHELASTIC", "CUDA"}
# What differs on purpose, or is below a temporary folder: launcher/README.md.
MAY_DIFFER = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}

# Project and file, command; "shape": of no project, but with "--", options and failures where the others have none.
# {port}: a free one, where the project has a fixed one; {python}: the one of torchrun.
COMMANDS = """
nanoGPT README.md: torchrun --standalone --nproc_per_node=4 train.py config/train_gpt2.py
nanoGPT README.md: torchrun --nproc_per_node=2 --nnodes=1 --node_rank=0 --master_addr=127.0.0.1 --master_port={port} train.py
nanochat runs/speedrun.sh: torchrun --standalone --nproc_per_node=2 -m scripts.base_train -- --depth=24 --target-param-data-ratio=8 --device-batch-size=16 --fp8 --run=dummy
nanochat runs/speedrun.sh: torchrun --standalone --nproc_per_node=2 -m scripts.base_eval -- --device-batch-size=16
nanochat runs/speedrun.sh: torchrun --standalone --nproc_per_node=2 -m scripts.chat_eval -- -i sft
nanochat README.md: OMP_NUM_THREADS=1 torchrun --standalone --nproc_per_node=2 -m scripts.base_train -- --depth=12 --run="d12" --model-tag="d12" --core-metric-every=999999 --sample-every=-1 --save-every=-1
nanochat README.md: NANOCHAT_DTYPE=bfloat16 torchrun --nproc_per_node=2 -m scripts.base_train
torchtitan run_train.sh: PYTORCH_ALLOC_CONF="expandable_segments:True" torchrun --nproc_per_node=2 --rdzv_backend c10d --rdzv_endpoint="localhost:0" --local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train --module llama3 --config llama3_debugmodel
torchtitan multinode_trainer.slurm: torchrun --nnodes 1 --nproc_per_node 2 --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:{port}" -m torchtitan.train --module torchtitan_recipes.tests.models.llama3 --config llama3_debugmodel
torchtitan nvfp4.md: torchrun --standalone --nproc_per_node 2 -m torchtitan.train --module llama3 --config llama3_8b_first_85_pct_layers_nvfp4 --parallelism.tensor_parallel_degree 1 --optimizer.param-groups.0.optimizer-kwargs.lr 0.0003 --hf-assets-path ./tests/assets/tokenizer
LLaMA-Factory launcher.py: torchrun --nnodes 1 --node_rank 0 --nproc_per_node 2 --master_addr 127.0.0.1 --master_port {port} src/llamafactory/launcher.py examples/train_lora/llama3_lora_sft.yaml
LLaMA-Factory launcher.py: torchrun --nnodes 1 --nproc-per-node 2 --rdzv-id 4711 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --max-restarts 0 src/llamafactory/launcher.py a.yaml
axolotl multi-node.qmd: torchrun --nnodes 1 --nproc_per_node 2 --rdzv_id 4711 --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:{port}" -m axolotl.cli.train config.yaml
axolotl axolotl.slurm: torchrun --nproc_per_node=2 --nnodes=1 --rdzv_id axolotl-cli --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:{port}" --rdzv-conf="join_timeout=1800" -m axolotl.cli.train config.yaml
axolotl swanlab/README.md: torchrun --nproc_per_node=2 -m axolotl.cli.train config.yml
detectron2 benchmarks.md: torchrun --nproc_per_node=2 tools/train_net.py --config-file configs/e2e_mask_rcnn_R_50_FPN_1x.yaml
mmdet dist_test.sh: torchrun --nproc_per_node=2 --master_port={port} ./tools/test.py configs/faster_rcnn.py a.pth --launcher pytorch --eval bbox segm
timm distributed_train.sh: torchrun --nproc_per_node=2 train.py --data-dir /data/imagenet --model seresnet34 --sched cosine --epochs 150 --warmup-epochs 5 --lr 0.4 --reprob 0.5 --remode pixel --batch-size 256 --amp -j 4
timm distributed_train.sh: torchrun --nproc_per_node=2 train.py --data-dir /imagenet/ --model efficientnet_b2 -b 128 --decay-rate .97 --opt-eps .001 -j 8 --warmup-lr 1e-6 --aa rand-m9-mstd0.5 --amp --lr .016
open_clip README.md: torchrun --nproc_per_node 2 -m open_clip_train.main --train-data '/data/cc12m/cc12m-train-{0000..2175}.tar' --train-num-samples 10968539 --dataset-type webdataset --batch-size 320 --precision amp --workers 4 --imagenet-val /data/imagenet/validation/
open_clip README.md: torchrun --nproc_per_node=2 --rdzv_endpoint=localhost:{port} -m open_clip_train.main --train-data '/data/cc12m/cc12m-train-{0000..2175}.tar' --batch-size 320
open_clip h14_224_32_finetune.sh: torchrun --nproc_per_node 2 -m open_clip_train.main --lr "2.048e-3" --aug-cfg scale='(0.4, 1.0)' color_jitter='(0.32, 0.32, 0.32, 0.08)'
DINOv2 README.md: torchrun --nproc_per_node=2 dinov2/train/train.py --config-file dinov2/configs/train/vitl16_short.yaml --output-dir "/out dir" train.dataset_path=ImageNet:split=TRAIN:root=/data:extra=/data
Megatron-LM quickstart.md: torchrun --nproc_per_node=2 examples/run_simple_mcore_train_loop.py
Megatron-LM train_gpt3_175b_distributed.sh: torchrun --nproc_per_node 2 --nnodes 1 --master_addr localhost --master_port {port} pretrain_gpt.py --num-layers 96 --step-batch-size-schedule "0:16 2.4B:320 4.8B:624" --lr-warmup-fraction .001 --data-path my_text_document --split 949,50,1
Megatron-LM generalized_tensor_parallel.md: torchrun --nproc-per-node 2 pretrain_gpt.py --tensor-model-parallel-size 2 --high-priority-stream-groups ep gtp_remat expt_gtp_remat --bf16 --data-path my_text --split 99,1,0
Megatron-LM generalized_tensor_parallel.md: torchrun --nproc-per-node 2 -m pytest tests/unit_tests/generalized_tensor_parallel/ -v
torchtune tune_cli.rst: torchrun --nnodes=1 --nproc-per-node=2 --standalone recipes/lora_finetune_distributed.py --config llama3/8B_lora
torchtune README.md: torchrun --nproc_per_node 2 --standalone recipes/full_finetune_distributed.py --config llama3_1/8B_full dataset.packed=True compile=True 'optimizer={lr: 2e-5}'
DeiT README_deit.md: torchrun --nproc_per_node=2 main.py --model deit_small_patch16_224 --batch-size 256 --data-path /path/to/imagenet --output_dir /path/to/save
ConvNeXt TRAINING.md: torchrun --nproc_per_node=2 main.py --model convnext_tiny --drop_path 0.1 --batch_size 128 --lr 4e-3 --update_freq 4 --model_ema true --model_ema_eval true --data_path /path/to/imagenet-1k
Swin get_started.md: torchrun --nproc_per_node 2 --master_port {port} main.py --eval --cfg configs/swin/swin_base_patch4_window7_224.yaml --resume swin_base.pth --data-path /imagenet
Swin get_started.md: torchrun --nproc_per_node 2 --nnode=1 --node_rank=0 --master_addr=127.0.0.1 --master_port {port} main_moe.py --cfg configs/swinmoe/swin_moe_small.yaml --batch-size 128
MAE FINETUNE.md: OMP_NUM_THREADS=1 torchrun --nproc_per_node=2 main_finetune.py --accum_iter 4 --batch_size 32 --finetune mae.pth --blr 5e-4 --layer_decay 0.65 --dist_eval --data_path /imagenet
YOLOv5 README.md: torchrun --nproc_per_node 2 --master_port {port} segment/train.py --data coco128-seg.yaml --weights yolov5s-seg.pt --img 640 --device 0,1
YOLOv5 README.md: torchrun --nproc_per_node 2 --master_port {port} classify/train.py --model yolov5s-cls.pt --data imagenet --epochs 5 --img 224 --device 0,1
Alpaca README.md: torchrun --nproc_per_node=2 --master_port={port} train.py --bf16 True --evaluation_strategy "no" --weight_decay 0. --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' --tf32 True
FastChat README.md: torchrun --nproc_per_node=2 --master_port={port} fastchat/train/train_mem.py --model_name_or_path meta-llama/Llama-2-7b-hf --gradient_accumulation_steps 16 --lazy_preprocess True
FastChat training.md: torchrun --nproc_per_node=2 --master_port={port} fastchat/train/train_flant5.py --model_name_or_path google/flan-t5-xl --data_path ./data/dummy_conversation.json --bf16 True
examples distributed/ddp/run_example.sh: torchrun --nnodes=1 --nproc_per_node=2 --rdzv_id=101 --rdzv_endpoint="localhost:{port}" example.py
examples distributed/FSDP/README.md: torchrun --nnodes 1 --nproc_per_node 2 T5_training.py
examples distributed/FSDP2/README.md: torchrun --nproc_per_node 2 example.py --explicit-prefetch
examples sbatch_run.sh: torchrun --nnodes 1 --nproc_per_node 1 --rdzv_id 20001 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:{port} multinode_torchrun.py 50 10
gpt-fast README.md: ENABLE_INTRA_NODE_COMM=1 torchrun --standalone --nproc_per_node=2 generate.py --compile --checkpoint_path checkpoints/model.pth
gpt-fast speculate_tp_70B_bf16.sh: torchrun --standalone --nproc_per_node=2 generate.py --compile --speculate_k 5 --prompt "def quicksort(arr):" --max_new_tokens 200 --temperature 0
shape: torchrun --nproc_per_node=2 --use-env=x train.py
shape: torchrun --nproc-per-node=2 --nnodes=1 --log-dir {folder}/logs --redirects 3 --tee "0:3" --local-ranks-filter 0 train.py --distributed-backend nccl
shape: torchrun --nnodes=1 --nproc_per_node=2 --no_python {python} train.py --local_rank ${local_rank} --deepspeed ./zero3.json
shape: torchrun --standalone --nproc_per_node=2 main.py -- 50 -- 10
shape: torchrun --standalone --nproc_per_node=2 -- main.py -- 50
shape: torchrun --nproc_per_node=2 --run-path main.py --epochs=-1
shape: CODE=7 torchrun --standalone --nproc_per_node=1 main.py --exits
shape: CODE=1 torchrun --standalone --max-restarts=1 --nproc_per_node=2 -m scripts.base_train -- --
"""


class Commands(Workplace):
    def __init__(self, ddprun, folder):
        super().__init__(ddprun, folder)
        text = WORKER.replace("NAMES", repr(NAMES))
        for line in COMMANDS.strip().splitlines():
            words = shlex.split(line)
            for name in [word for word in words if word.endswith(".py")]:
                self.write(folder / name, text)
            if "-m" in words:
                module = folder / (words[words.index("-m") + 1].replace(".", "/") + ".py")
                self.write(module, text)
                for package in [each for each in module.parents if folder in each.parents]:
                    self.write(package / "__init__.py", "")

    @staticmethod
    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def seen(self, words, variables, launcher):
        out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        case = types.SimpleNamespace(words=words, variables={**variables, "OUT_DIR": str(out)})
        outcome, _ = self.run(case, str(free_port()), launcher)
        workers = {path.name: json.loads(path.read_text()) for path in sorted(out.iterdir())}
        for worker in workers.values():
            for name in MAY_DIFFER if variables.get("PORT_IS_FIXED") else {*MAY_DIFFER, "MASTER_ADDR", "MASTER_PORT"}:
                worker["environment"].pop(name, None)
        return outcome.code, workers, outcome.said


def main():
    ddprun = os.path.abspath(sys.argv[1])
    lines = COMMANDS.strip().splitlines()
    chosen = lines if os.environ.get("DDPRUN_TEST_FULL") else lines[::3]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun_commands_"))
    failures = 0
    try:
        commands = Commands(ddprun, folder)
        for line in chosen:
            project, command = line.split(": ", 1)
            command = command.replace("{port}", str(free_port())).replace("{folder}", str(folder))
            words = shlex.split(command)
            # Under c10d the workers' store has another port than the endpoint.
            variables = {"PORT_IS_FIXED": "1"} if "{port}" in line and "c10d" not in line else {}
            while "=" in words[0]:
                variables.update([words.pop(0).split("=", 1)])
            words = words[1:]
            our_code, ours, our_words = commands.seen(words, variables, commands.under_ddprun)
            their_code, theirs, their_words = commands.seen(words, variables, commands.under_torchrun)
            failed = bool(variables.get("CODE"))
            # The exit code of a job that failed is the worker's: launcher/README.md.
            same_code = (our_code, their_code) == (int(variables["CODE"]), 1) if failed else our_code == their_code
            refused = our_code == their_code == 2 and not ours and not theirs
            good = same_code and ours == theirs and (ours or refused)
            print("ok  " if good else "DIFF", line, flush=True)
            if not good:
                failures += 1
                print(f"     ddprun {our_code} {ours}\n     torchrun {their_code} {theirs}\n     {our_words[-500:]}\n"
                      f"     {their_words[-1500:]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"beside torchrun of PyTorch {torch.__version__}: {len(chosen)} of {len(lines)} command lines, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
