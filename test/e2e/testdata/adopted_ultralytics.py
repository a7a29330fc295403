"""Trains a detector for one epoch on two ranks, as ultralytics does on several GPUs. adopted_ultralytics.py good|fail

Without GPUs ultralytics starts no workers: the trainer below says that there are two devices, and has them use gloo.
"""

import os
import sys

import cv2
import numpy
import torch
import torch.distributed as dist
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.utils import LOCAL_RANK, RANK

DDP = torch.nn.parallel.DistributedDataParallel


class Trainer(DetectionTrainer):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.world_size, self.ddp = 2, LOCAL_RANK == -1

    def _do_train(self):
        self.device = torch.device("cpu")
        torch.nn.parallel.DistributedDataParallel = lambda module, device_ids, **named: DDP(module, **named)
        dist.init_process_group("gloo")
        self._setup_train()
        for batch in self.train_loader:
            loss, _ = self.model(self.preprocess_batch(batch))
            self.optimizer.zero_grad()
            loss.sum().backward()
            self.optimizer.step()
        if self.args.name == "fail" and RANK == 1:
            raise ValueError("boom")
        if RANK == 0:
            print("worked %d %s\n" % (dist.get_world_size(), round(loss.sum().item(), 4)), end="", flush=True)


if __name__ == "__main__":
    for name in ("images", "labels"):
        os.makedirs("data/" + name)
    for i in range(8):
        cv2.imwrite("data/images/%d.jpg" % i, numpy.full((64, 64, 3), 20 * i, dtype=numpy.uint8))
        with open("data/labels/%d.txt" % i, "w") as f:
            f.write("0 0.5 0.5 0.4 0.4\n")
    with open("data.yaml", "w") as f:
        f.write("path: %s/data\ntrain: images\nval: images\nnames: {0: a}\n" % os.getcwd())
    from adopted_ultralytics import Trainer  # by the name that the workers import it by

    Trainer(overrides={
        "model": "yolov8n.yaml", "data": "data.yaml", "imgsz": 32, "epochs": 1, "batch": 4, "device": "cpu", "workers": 0, "amp": False,
        "plots": False, "val": False, "project": os.getcwd() + "/runs", "name": sys.argv[1]}).train()
