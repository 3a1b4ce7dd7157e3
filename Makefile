# `make help` lists what there is to make.
.DEFAULT_GOAL := help
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: help build programs demo demo-fn demo-mem check test test-all apps soak lint generate clean
GO_BUILD := CGO_ENABLED=0 go build -trimpath -ldflags "-s -w"

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: programs ## everything that runs, into bin/; the Rust runtimes need cargo
	@deploy/build-unit
	@deploy/build-mem

programs: # what is written in Go: all that services need
	@deploy/deps
	$(GO_BUILD) -o bin/ ./cmd/...
	$(GO_BUILD) -o bin/pando-demo ./demo
	cd examples/website && $(GO_BUILD) -o website .

demo: programs ## a website scales itself over 3 hosts under a ramp; one dies; writes demo.html
	@bin/pando-demo --report demo.html

demo-mem: ## a Redis with four times its memory, live; writes demo-mem.html
	@deploy/deps test
	@demo/far-memory

demo-fn: build ## a capture through two functions; [CAPTURE=FILE] [RULES=FILE] [SPEED=N] [COPIES=N]
	@bin/pando-demo fn --report demo-fn.html --capture "$(CAPTURE)" --rules "$(RULES)" \
		$(if $(SPEED),--speed $(SPEED)) $(if $(COPIES),--copies $(COPIES))

generate: ## make again what is generated and committed (needs clang)
	go generate ./...

check: ## what needs neither root nor a package, in a minute; [ROOM=control]
	@deploy/check $(ROOM)

test: ## test every promise of the README; the last line counts the tests
	@deploy/deps
	@deploy/test

test-all: ## what takes longer than `make test`: static checks, races, the long tests
	@deploy/deps
	@deploy/test-all $(STATICCHECK)

apps: programs ## eighteen applications by their own Compose files: used, rolled out, restored
	@deploy/deps test
	@test/apps/prepare target/apps
	@PANDO_APPS=all PANDO_PREPARED=$(CURDIR)/target/apps go test -count 1 -timeout 2h -v ./test/apps

N ?= 10
soak: ## what is drawn at random, N times as often as `make test` does (N=10 unless given)
	@deploy/soak $(N)

lint: ## gofmt, vet, staticcheck and the rules of the house
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff
	go test ./test/house

clean: ## remove what was built
	rm -rf bin build demo.html demo-fn.html demo-mem.html examples/website/website
