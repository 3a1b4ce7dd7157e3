package process

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

// An instance starts with as much environment, configs and secrets as a spec may have.
func TestAnInstanceStartsWithAllThatASpecAllows(t *testing.T) {
	d := newDriver(t, 1)
	const variables = 256
	spec := pando.Spec{Name: "web", WorkingDir: "/", StopSeconds: 0.3,
		Environment: map[string]string{}}
	for n := range variables {
		spec.Environment[fmt.Sprintf("V%d", n)] = strings.Repeat("x", 1024)
	}
	var configs []pando.ConfigFile
	for size := 0; size < pando.ConfigsBytesMax; size += pando.ConfigBytesMax {
		configs = append(configs, pando.ConfigFile{Name: fmt.Sprintf("c%d", size), Mode: 0o444,
			Content: bytes.Repeat([]byte{'<'}, pando.ConfigBytesMax)})
	}
	secrets := map[string][]byte{}
	const each = pando.SecretBytesMax
	for size := 0; size < pando.SecretsBytesMax; size += pando.SecretBytesMax {
		secrets[fmt.Sprintf("s%d", size)] = bytes.Repeat([]byte{'<'}, each)
	}
	spec.Command = []string{"/bin/sh", "-c", "env | grep -c ^V; cat /run/configs/* | wc -c; cat " +
		"/run/secrets/" + strings.Join(slices.Sorted(maps.Keys(secrets)), " /run/secrets/") +
		" | wc -c; exec sleep 60"} // no one lists the folder of the secrets
	spec = spec.WithDefaults()
	b, err := d.Start(t.Context(), pando.SandboxSpec{
		Instance: pando.Instance{ID: "web-1", Service: spec.Key(), Role: pando.RoleFirst}, Spec: spec,
		VIP4: vip, Configs: configs, Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	awaitLast(t, b, fmt.Sprint(len(secrets)*each))
	want := fmt.Sprint([]string{fmt.Sprint(variables), fmt.Sprint(len(configs) * pando.ConfigBytesMax),
		fmt.Sprint(len(secrets) * each)})
	if got := fmt.Sprint(b.LastLines(3)); got != want {
		t.Errorf("in the instance: %s, want %s", got, want)
	}
}
