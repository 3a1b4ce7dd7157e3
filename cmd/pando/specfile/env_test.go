package specfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando/cmd/pando/console"
)

// --env adds the changes of the file beside, to a spec file and to a Compose file. Without that
// file nothing is loaded.
func TestAnEnvironmentChangesAFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"app.yaml":            "name: web\ncommand: [x]\nscale: {min: 4}\n",
		"app.staging.yaml":    "scale: {min: 1}\n",
		"compose.yml":         "name: shop\nservices: {web: {image: w, deploy: {replicas: 4}}}\n",
		"compose.staging.yml": "services: {web: {deploy: {replicas: 1}}}\n",
		"app.broken.yaml":     "scale: {mim: 1}\n",
		"compose.broken.yml":  "services: {web: {privileged: true}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		file, env string
		min       int
		want      string // in the error
	}{
		{"app.yaml", "", 4, ""},
		{"app.yaml", "staging", 1, ""},
		{"compose.yml", "", 4, ""},
		{"compose.yml", "staging", 1, ""},
		{"app.yaml", "broken", 0, "app.broken.yaml:1:9: scale.mim: unknown key"},
		{"compose.yml", "broken", 0, "compose.broken.yml:1:"},
		{"app.yaml", "stagin", 0, "there is no " + dir + "/app.stagin.yaml"},
		{"compose.yml", "stagin", 0, "there is no " + dir + "/compose.stagin.yml"},
	} {
		o := &console.Console{}
		specs, err := Load(t.Context(), o, filepath.Join(dir, c.file), Flags{Env: c.env})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s --env %s: %v, want %q", c.file, c.env, err, c.want)
			}
			continue
		}
		if err != nil || len(specs) != 1 || specs[0].Scale.Min != c.min {
			t.Errorf("%s --env %s: %+v, %v", c.file, c.env, specs, err)
		}
	}
}
