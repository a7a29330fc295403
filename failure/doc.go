// Package failure explains why a training job failed. For each worker that
// ended badly the agent hands over what it saw (an Observation: exit code,
// times, kernel counters, the last of stderr); New adds what the worker left
// behind, the error file of torch's @record or else the last traceback on
// stderr, and says in one line what happened. A Report then names the root
// cause, which is the earliest failure that is not the echo of another, and
// prints it: for people in torchrun's layout, for machines as JSON.
//
// Everything that a worker wrote is treated as hostile: error files are read
// up to 4 MiB and only if they are regular files, broken ones become
// a note in the report, and text is bounded and freed of terminal control
// sequences before a person sees it.
//
// The package looks at what is there; it stops nothing, restarts nothing and
// waits for nothing.
//
// Source: torch/distributed/elastic/multiprocessing/errors/__init__.py and
// error_handler.py.
package failure
