# `make help` lists what there is to make.
.DEFAULT_GOAL := help
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: help test lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

test: ## run every check and test there is; the last line counts them
	@deploy/test $(STATICCHECK)

lint: ## gofmt, vet, staticcheck and the rules of the house
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go test ./test/house

clean: ## remove what was built
	rm -rf bin build
