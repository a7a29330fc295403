"""A notebook that trains with accelerate's notebook_launcher. adopted_notebook.py good|fail"""

import os
import sys

import nbclient
import nbformat

CELL = """
from accelerate import notebook_launcher

def train(mode):
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    total = accelerator.reduce(torch.tensor([accelerator.process_index + 1.0]), "sum")
    if mode == "fail" and accelerator.process_index == 1:
        raise ValueError("boom")
    if accelerator.process_index == 0:
        print("worked {} {}".format(accelerator.num_processes, total.item()), flush=True)

notebook_launcher(train, (%r,), num_processes=2)
"""
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL % sys.argv[1])])
console = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a kernel shows there again what it puts into the notebook
os.dup2(1, 2)
status = 0
try:
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
except nbclient.exceptions.CellExecutionError as e:
    console.write("%s: %s\n" % (e.ename, e.evalue))
    status = 1
for output in notebook.cells[0].outputs:
    if output.output_type == "stream":
        console.write(output.text)
console.flush()
sys.exit(status)
