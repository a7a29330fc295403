"""What a type checker says of calls: TestTypes has mypy read this. An ignore that is not
needed is an error there, so each of them is a mistake that mypy finds."""

from typing import Dict

from typing_extensions import assert_type

import muster


def train(rate: float, steps: int = 1) -> str:
    return "%g %d" % (rate, steps)


def nothing() -> int:
    return 1


@muster.deadline("60s")
def step(batch: int) -> str:
    return str(batch)


config = muster.LaunchConfig(1, 1, 2)
assert_type(muster.run(train, (1e-3,), nproc_per_node="auto", max_restarts=3), Dict[int, str])
assert_type(muster.run(train, (1e-3, 5), hang_timeout=60, rdzv_conf={"join_timeout": 3}), Dict[int, str])
assert_type(muster.run(nothing), Dict[int, int])
assert_type(muster.run("train.py", ["--lr", "1"], tee=3), Dict[int, None])
assert_type(muster.start(train, (1e-3,)), muster.Job[str])
assert_type(muster.start(nothing).wait(5), Dict[int, int])
assert_type(muster.elastic_launch(config, train)(1e-3, steps=2), Dict[int, str])
assert_type(muster.elastic_launch(config, "/bin/true")("--x"), Dict[int, None])
assert_type(step(1), str)
muster.run(train, ("x",))  # type: ignore[arg-type]
muster.run(train)  # type: ignore[arg-type]
muster.run(nothing, hang_timout=60)  # type: ignore[call-overload]
muster.run(nothing, hang_action="kil")  # type: ignore[call-overload]
muster.elastic_launch(config, train)("x")  # type: ignore[arg-type]
step("x")  # type: ignore[arg-type]
