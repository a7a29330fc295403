"""A flow with a step that trains. adopted_metaflow.py run --mode good|fail"""

from metaflow import FlowSpec, Parameter, TorchrunSingleNodeMultiGPU, step

SCRIPT = __file__.replace("adopted_metaflow.py", "adopted.py")


class Train(FlowSpec):
    mode = Parameter("mode")

    @step
    def start(self):
        TorchrunSingleNodeMultiGPU().run(entrypoint=SCRIPT, nproc_per_node=2, entrypoint_args=[self.mode])
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    Train()
