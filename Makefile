# Targets only name commands; what each does is said in its script.

.PHONY: help build wheel release demo test stress lint bench judge compat fuzz venv docs reference pictures reliability architecture

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile

build: ## bin/muster, bin/torchrun as a link to it, and bin/muster-quorum
	internal/tools/build.sh

wheel: ## Python wheels for Linux and macOS, into dist
	internal/tools/wheel.sh

release: ## all that is published, into dist: tarballs, wheels, sdist, image, SBOM, checksums
	internal/tools/release.sh

demo: ## two workers train, one is killed, the training goes on
	internal/tools/demo.sh

test: ## lint and every test, with PyTorch as the judge
	internal/tools/test.sh

stress: build ## the tests again and again under a load of its own making: RUNS=3 LOAD="-busy 8" ARGS="flags packages"
	go run ./internal/tools/stress -runs $(or $(RUNS),3) $(LOAD) -- $(ARGS)

lint: ## gofmt, go vet, staticcheck, and that other systems compile it
	internal/tools/lint.sh

bench: build ## muster beside the real torchrun, into docs/benchmarks.md
	MUSTER_PYTHON=$$(internal/tools/venv.sh) go run ./bench

judge: build ## show that torchrun has the defects that muster does not, try warm starts and hosts on more, vet for other systems
	internal/tools/lint.sh all
	MUSTER_JUDGE=1 MUSTER_E2E_LONG=1 TEST_TIMEOUT=90m internal/tools/test.sh -v -run 'Judge|LossesEqual|HostsTraining|HostsSlowRank|Collectives(Dump)?$$|HangIsExplained|LiveReplicasTrain|Package|ReleaseIsReproducible' ./test/e2e ./process/warm ./test/wheeltest

compat: build ## the peer tests with other releases of PyTorch, one after the other
	internal/tools/compat.sh

fuzz: ## every fuzz target, FUZZTIME (60s) each
	internal/tools/fuzz.sh

pictures: build ## the status page's pictures in docs/, of a job that hangs and goes on
	internal/tools/pictures.sh

reliability: build ## measure again what docs/internals/failures.md says (as root)
	go run ./internal/tools/reliability

architecture: ## docs/architecture.svg, from the imports (needs Graphviz)
	go run ./internal/tools/architecture

reference: ## write docs/reference from the tables in the code
	go test ./cmd/muster/internal/cli ./cmd/muster/internal/runline ./internal/tools/pages -count 1 -run '^TestReference' -update

docs: ## the documentation site in dist/site, with search; dead links are errors
	internal/tools/docs.sh

venv: ## prepare PyTorch for demo and tests; PYTHON=… uses one that is there
	internal/tools/venv.sh
