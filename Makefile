# make compare   the main job: safety and speed of every backend, on this machine
# make test      all tests, on real servers
#
# Both get what is missing first: servers by apt-get (as root or with sudo), a
# current etcd from the Go module proxy. A second run finds everything there.

GO         ?= go
ARGS       ?=
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Modules of their own, so that a user of the library never sees what they need.
NESTED      = conformance/servers/etcd

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## get the servers that are missing
	@scripts/setup-servers

.PHONY: compare
compare: setup ## compare all backends (ARGS='--quick', '--only redis,etcd', …)
	@$(GO) build -o bin/lockkit ./cmd/lockkit
	@bin/lockkit compare $(ARGS)

.PHONY: test
test: setup ## all tests with the race detector (ARGS='-run Name', '-count=10', …)
	$(GO) test -race $(ARGS) ./...

.PHONY: soak
soak: setup ## all tests 10 times on a busy machine (over an hour)
	scripts/soak 10

.PHONY: lint
lint: ## format, vet, staticcheck, go.mod
	scripts/lint $(NESTED)

.PHONY: fuzz
fuzz: ## fuzz the parsers for a minute each
	$(GO) test ./drivers -run '^$$' -fuzz '^FuzzParseURL$$' -fuzztime 1m
	$(GO) test ./drivers -run '^$$' -fuzz '^FuzzURLHidesPasswords$$' -fuzztime 1m
	$(GO) test ./drivers -run '^$$' -fuzz '^FuzzEscapeName$$' -fuzztime 1m

.PHONY: try-readme
try-readme: ## run the README's blocks on a clean clone
	scripts/try-readme

.PHONY: table
table: setup ## make the driver table of the README anew
	@$(GO) build -o bin/lockkit ./cmd/lockkit
	scripts/table
