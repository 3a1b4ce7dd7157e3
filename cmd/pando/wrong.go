package main

import "strings"

// otherVerbs maps commands of compose, kubectl and nomad to those of Pando. The longest match of
// the first words counts. A command of Pando of the same name is not reached here.
var otherVerbs = map[string]string{
	"alloc exec":       "pando exec SERVICE/INSTANCE -- COMMAND…",
	"alloc logs":       "pando logs SERVICE",
	"alloc restart":    "pando restart SERVICE INSTANCE",
	"alloc status":     "pando ps",
	"alloc stop":       "pando restart SERVICE INSTANCE",
	"apply":            "pando deploy FILE.yaml",
	"attach":           "pando logs -f SERVICE",
	"build":            "pando image build",
	"cordon":           "pando hosts drain HOST",
	"create":           "pando deploy FILE.yaml",
	"delete":           "pando rm SERVICE",
	"drain":            "pando hosts drain HOST",
	"describe":         "pando status SERVICE; pando why SERVICE",
	"events":           "pando watch",
	"get":              "pando status",
	"get events":       "pando watch",
	"get nodes":        "pando hosts",
	"get pods":         "pando ps",
	"get secrets":      "pando secret ls",
	"get services":     "pando status",
	"images":           "pando image ls",
	"job history":      "pando history SERVICE",
	"job plan":         "pando diff FILE.yaml",
	"job revert":       "pando rollback SERVICE",
	"job run":          "pando deploy FILE.yaml",
	"job status":       "pando status SERVICE",
	"job stop":         "pando rm SERVICE",
	"kill":             "pando restart SERVICE INSTANCE; pando rm SERVICE --now",
	"node":             "pando hosts",
	"node drain":       "pando hosts drain HOST; pando hosts undrain HOST",
	"node eligibility": "pando hosts drain HOST; pando hosts undrain HOST",
	"node ls":          "pando hosts",
	"node promote":     "pando servers add",
	"node rm":          "pando hosts rm HOST",
	"node status":      "pando hosts",
	"node update":      "pando hosts drain HOST; pando hosts undrain HOST",
	"pull":             "pando image pull IMAGE",
	"rollout restart":  "pando restart SERVICE",
	"service":          "pando status",
	"start":            "pando scale SERVICE N; pando deploy FILE.yaml",
	"uncordon":         "pando hosts undrain HOST",
	"undrain":          "pando hosts undrain HOST",
	"stop":             "pando scale SERVICE 0; pando rm SERVICE",
}

// translated returns the command of Pando for a command line of another tool, or "". parent has the
// words before args, without pando.
func translated(parent, args []string) string {
	words := append(append([]string{}, parent...), args...)
	for n := min(2, len(words)); n > len(parent); n-- {
		if to := otherVerbs[strings.Join(words[:n], " ")]; to != "" {
			return to
		}
	}
	return ""
}
