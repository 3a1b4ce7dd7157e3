//go:build bench

package replicate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// bundle is a container as crun takes it: its root has the files of the image already. Commands
// start on a thread of their own.
type bundle struct {
	dir   string
	start chan func()
}

// newBundle makes a container of a program, with crun's own defaults.
func (b *bench) newBundle(program []byte) bundle {
	c := bundle{b.TempDir(), make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with this goroutine
		if err := oneCgroups(); err != nil {
			b.Errorf("a mount namespace for crun: %v", err)
		}
		for f := range c.start {
			f()
		}
	}()
	b.Cleanup(func() { close(c.start) })
	path := filepath.Join(c.dir, "rootfs", "app")
	if err := os.MkdirAll(path, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "asker"), program, 0o755); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("crun", "spec")
	cmd.Dir = c.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("crun spec: %v %s", err, out)
	}
	return c
}

// oneCgroups hides cgroup v2 from this thread beside v1: crun of Debian 12 refuses both.
func oneCgroups() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH) // absent with one version
	return nil
}

// join writes the network namespace and the program into the container's file.
func (c bundle) join(network string) error {
	file := filepath.Join(c.dir, "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	process := config["process"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"/app/asker"}
	process["env"] = []string{"PANDO_INSTANCE=bare"} // its name
	for _, one := range config["linux"].(map[string]any)["namespaces"].([]any) {
		if one := one.(map[string]any); one["type"] == "network" {
			one["path"] = network
		}
	}
	if text, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// crun starts the program by crun alone, in a network namespace with a veth pair. It returns the
// time to the first byte of the answer.
func (b *bench) crun(round int, c bundle) time.Duration {
	subnet := fmt.Sprintf("10.98.%d.", round)
	name := fmt.Sprintf("pando-bench-%d-%d", os.Getpid(), round)
	began := time.Now()
	ns, link := b.network(subnet)
	defer ns.Close()
	defer link()
	if err := c.join(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns))); err != nil {
		b.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command("crun", "run", "--bundle", c.dir, name)
	cmd.Stdout, cmd.Stderr = &said, &said
	started := make(chan error)
	c.start <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		b.Fatal(err)
	}
	defer func() {
		c.start <- func() { started <- exec.Command("crun", "delete", "--force", name).Run() }
		if err := errors.Join(<-started, cmd.Wait()); said.Len() > 0 {
			b.Errorf("crun: %v %s", err, said.String())
		}
	}()
	return b.first(subnet+"2:8080", "nobody").Sub(began)
}
