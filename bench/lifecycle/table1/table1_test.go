//go:build bench

// Package table1 counts the dependencies, the downloads and the variables of examples/three-tier
// (container-devops Table I). The case has the same parts as the paper's: a database, a queue
// and a controller, three times each. The paper's controller is OpenStack's, and is larger.
package table1

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pando.run/pando/bench/sheet"
	"pando.run/pando/spec"
)

const folder = "../../../examples/three-tier"

// word is a package in the sentence of the README that names them.
var word = regexp.MustCompile("`([^`]+)`")

// packages returns the packages that the README of the case names.
func packages(t *testing.T) (out []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "The hosts need Debian's packages")
	sentence, _, end := strings.Cut(rest, ".")
	if !ok || !end {
		t.Fatalf("the README does not name the packages of the hosts:\n%s", text)
	}
	for _, found := range word.FindAllStringSubmatch(sentence, -1) {
		out = append(out, found[1])
	}
	return out
}

func TestTable1(t *testing.T) {
	file := filepath.Join(folder, "pando.yaml")
	services, err := spec.Load(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	named := packages(t)
	images, secrets, variables := map[string]bool{}, map[string]bool{}, 0
	for _, s := range services {
		variables += len(s.Environment) + len(s.Configs)
		for _, one := range s.StoredSecrets {
			secrets[one.Name] = true
		}
		if s.Image.Reference != "" {
			images[s.Image.Reference] = true
		}
	}
	variables += len(secrets)
	// Pando counts as a dependency, and its archive as a download.
	dependencies, downloads := len(named)+1, len(named)+len(images)+1
	s := sheet.New(t, ".")
	for _, one := range []struct {
		measure            string
		chef, docker, ours int
		more               string
	}{
		{"dependencies", 22, 5, dependencies, "Pando, " + strings.Join(named, ", ")},
		{"downloads", 50, 6, downloads, "the same, each with one download"},
		{"variables", 80, 26, variables,
			fmt.Sprintf("%d secrets; environment and configs: %d", len(secrets), variables-len(secrets))},
	} {
		s.Note(0, one.measure+", Chef in the paper", float64(one.chef))
		s.Note(0, one.measure+", Docker in the paper", float64(one.docker))
		s.Note(0, one.measure+", Pando", float64(one.ours))
		s.Row(one.measure+" of the case, against Chef and Docker in the paper",
			fmt.Sprintf("≤ %d", one.docker), fmt.Sprintf("%d and %d", one.chef, one.docker),
			fmt.Sprintf("%d (%s)", one.ours, one.more), one.ours <= one.docker)
	}
	s.Publish("Configuration points of the case (container-devops Table I)", "points")
}
