//go:build bench

package kill

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"pando.run/pando/lab/labtest"
)

// stack starts the peer on a host: etcd, three containers with their sidekicks, and the watcher
// with HAProxy. It returns the name of one container, and the function that ends all of it.
func stack(p *labtest.Pando, host string) (name string, end func()) {
	p.Helper()
	const store = "http://127.0.0.1:2379"
	program := labtest.Build(p, "./bench/lifecycle/kill/stack")
	all := []*labtest.Process{p.Start(host, "/usr/bin/etcd", "--data-dir",
		filepath.Join(p.Dir, "peer-etcd"), "--listen-client-urls", store, "--advertise-client-urls",
		store, "--listen-peer-urls", "http://127.0.0.1:2380")}
	for n := range instances {
		name = fmt.Sprintf("peer-%d", n+1)
		port := 8081 + n
		all = append(all, p.Start(host, program, "sidekick", store, name,
			fmt.Sprintf("127.0.0.1:%d", port), bundle(p, host, name, port)))
	}
	all = append(all, p.Start(host, program, "confd", store, filepath.Join(p.Dir, "haproxy.cfg")))
	return name, func() {
		for n := len(all) - 1; n >= 0; n-- {
			if said := all[n].Stop().Text; p.Failed() {
				p.Logf("%s", said[max(0, len(said)-1000):])
			}
		}
	}
}

// bundle returns the folder of a container with the program, on the network of its host.
func bundle(p *labtest.Pando, host, name string, port int) string {
	p.Helper()
	dir := filepath.Join(p.Dir, name)
	root := filepath.Join(dir, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		p.Fatal(err)
	}
	if err := os.Link(filepath.Join(p.Dir, "worker"), filepath.Join(root, "worker")); err != nil {
		p.Fatal(err)
	}
	p.Must(host, "crun", "spec", "--bundle", dir)
	file := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		p.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		p.Fatal(err)
	}
	process, linux := config["process"].(map[string]any), config["linux"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"/worker"}
	process["env"] = append([]string{"PANDO_INSTANCE=" + name, fmt.Sprintf("PORT=%d", port)},
		program...)
	var kept []any
	for _, one := range linux["namespaces"].([]any) {
		if kind := one.(map[string]any)["type"]; kind != "network" && kind != "cgroup" {
			kept = append(kept, one)
		}
	}
	linux["namespaces"] = kept
	if text, err = json.Marshal(config); err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		p.Fatal(err)
	}
	return dir
}
