package instance

import (
	"os"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// A log that cannot be written is a matter of the output, not of the server.
func TestALogOnAFullDiskNamesTheDisk(t *testing.T) {
	env, _ := consoletest.Answering(t, map[string]any{"GET /v1/services/web/logs": "line"})
	o := console.Open(&cli.Output{Env: env})
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	o.Out.Stdout = full
	err = copyLogs(t.Context(), o, pando.DefaultService("web"), logged{}, pando.LogQuery{Lines: 1})
	if cli.CodeOf(err) != 1 || !strings.Contains(err.Error(), "the output is incomplete: ") ||
		!strings.Contains(err.Error(), "no space left") {
		t.Errorf("code %d: %v", cli.CodeOf(err), err)
	}
}
