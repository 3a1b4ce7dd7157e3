package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// confd writes the configuration of HAProxy from the addresses in etcd.
type confd struct {
	store *clientv3.Client
	file  string
	began bool
}

// server is one address of the service.
type server struct{ Name, Address string }

// page has the service twice: with HAProxy's own retries, and with the words of the OpenStack guide
// about high availability.
var page = template.Must(template.New("haproxy.cfg").Parse(`global
 maxconn 8000
 stats socket {{.Socket}} mode 600 level admin expose-fd listeners
defaults
 mode http
 timeout connect 2s
 timeout client 10s
 timeout server 10s
listen plain
 bind :8000
 balance roundrobin
{{- range .Servers}}
 server {{.Name}} {{.Address}}
{{- end}}
listen redispatch
 bind :8001
 balance roundrobin
 option redispatch
 retries 3
{{- range .Servers}}
 server {{.Name}} {{.Address}} check inter 2000 rise 2 fall 5
{{- end}}
`))

// render returns the configuration with the given servers.
func render(socket string, servers []server) (string, error) {
	var b strings.Builder
	err := page.Execute(&b, struct {
		Socket  string
		Servers []server
	}{socket, servers})
	return b.String(), err
}

// run follows the addresses until ctx ends.
func (c *confd) run(ctx context.Context) error {
	written := ""
	var changes clientv3.WatchChan
	for ctx.Err() == nil {
		all, err := c.store.Get(ctx, prefix, clientv3.WithPrefix())
		if err != nil {
			return fmt.Errorf("read the addresses: %w", err)
		}
		var servers []server
		for _, kv := range all.Kvs {
			servers = append(servers, server{strings.TrimPrefix(string(kv.Key), prefix), string(kv.Value)})
		}
		text, err := render(c.beside("haproxy.sock"), servers)
		if err == nil && text != written {
			err = c.load(text)
			written = text
			fmt.Println("servers:", servers)
		}
		if err != nil {
			return err
		}
		if changes == nil {
			changes = c.store.Watch(ctx, prefix, clientv3.WithPrefix(),
				clientv3.WithRev(all.Header.Revision+1))
		}
		if _, open := <-changes; !open && ctx.Err() == nil {
			return errors.New("etcd ended the watch")
		}
	}
	return nil
}

// beside returns a file beside the configuration.
func (c *confd) beside(name string) string { return filepath.Join(filepath.Dir(c.file), name) }

// load starts HAProxy with a configuration. A new process takes the sockets of the former one over,
// and returns once it serves.
func (c *confd) load(text string) error {
	if err := os.WriteFile(c.file, []byte(text), 0o644); err != nil {
		return err
	}
	args := []string{"-D", "-f", c.file, "-p", c.beside("haproxy.pid")}
	if c.began {
		pid, err := os.ReadFile(c.beside("haproxy.pid"))
		if err != nil {
			return err
		}
		args = append(args, "-x", c.beside("haproxy.sock"), "-sf", strings.TrimSpace(string(pid)))
	}
	c.began = true
	if out, err := exec.Command("/usr/sbin/haproxy", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("start HAProxy: %w: %s", err, out)
	}
	return nil
}
