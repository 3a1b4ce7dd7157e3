//go:build bench

package start

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"pando.run/pando"
	"pando.run/pando/driver/cgroup"
	"pando.run/pando/driver/process"
	"pando.run/pando/lab/labtest"
)

// sandboxes measures the process driver, with or without sandboxes that are ready.
func sandboxes(t *testing.T, s samples, round int, program string, pool int) {
	t.Helper()
	groups, err := cgroup.Open(cgroup.Root)
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := pando.InstanceRange(1001)
	dir := t.TempDir()
	d, err := process.New(process.Config{
		Host: pando.HostName(fmt.Sprintf("bench%d", os.Getpid())), RunDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "log"),
		Self: []string{"/proc/self/exe"}, Prefix4: v4, Prefix6: v6, Pool: pool, Cgroups: groups, Groups: cgroup.Root,
		Clock: pando.WallClock{}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Purge(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	spec := pando.Spec{Name: "echo", Command: []string{program}, WorkingDir: filepath.Dir(program), Resources: pando.Resources{MemoryBytes: 128 << 20}}.WithDefaults()
	for n := range each {
		awaitReady(t, filepath.Join(dir, "run"), pool)
		begin := time.Now()
		b, err := d.Start(t.Context(), pando.SandboxSpec{
			Instance: pando.Instance{ID: pando.InstanceID(fmt.Sprintf("echo-%d", n)), Service: spec.Key()}, Spec: spec, VIP4: netip.MustParseAddr("10.127.0.9"),
		})
		if err != nil {
			t.Fatal(err)
		}
		at := b.Link().IP4.String() + ":8080"
		firstByte(t, at)
		took := time.Since(begin)
		if pool == 0 {
			s.add(cold, round, took)
		} else {
			s.add(pooled, round, took)
			if err := b.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			begin = time.Now()
			if err := b.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			firstByte(t, at)
			s.add(resumed, round, time.Since(begin))
		}
		begin = time.Now()
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if pool > 0 {
			s.add(removed, round, time.Since(begin))
		}
	}
}

// awaitReady waits until as many sandboxes wait for a program.
func awaitReady(t *testing.T, run string, wanted int) {
	t.Helper()
	ready := 0
	for end := time.Now().Add(patience); time.Now().Before(end); pause(t, time.Millisecond) {
		files, err := filepath.Glob(filepath.Join(run, "*", "slot.json"))
		if err != nil {
			t.Fatal(err)
		}
		ready = 0
		for _, f := range files {
			var slot struct{ Instance string }
			if b, err := os.ReadFile(f); err == nil && json.Unmarshal(b, &slot) == nil && slot.Instance == "" {
				ready++
			}
		}
		if ready >= wanted {
			return
		}
	}
	t.Fatalf("%d sandboxes are ready, want %d", ready, wanted)
}

// whole measures all of Pando: an instance asks for another, and a client over the network sees the first byte of it.
type whole struct {
	t    *testing.T
	p    *labtest.Pando
	took samples
	new  *labtest.Service
	warm *labtest.Service
}

func (w *whole) deploy() {
	w.new = w.p.Deploy(labtest.Echo("new", "scale: {min: 1, max: 2}"))
	w.warm = w.p.Deploy(labtest.Echo("warm", "scale: {min: 1, max: 2, warm: 1}"))
}

func (w *whole) measure(round int) {
	for range each {
		w.took.add(replicate, round, w.once(w.new))
		w.took.add(inNew, round, w.rotation(w.new))
		w.took.add(claimed, round, w.once(w.warm))
		w.took.add(inWarm, round, w.rotation(w.warm))
	}
}

// rest waits until nothing of an earlier measurement goes on: the reserve is there, and the pool is full.
func (w *whole) rest() {
	w.t.Helper()
	w.warm.Await("the reserve", func(st pando.ServiceStatus) bool {
		return slices.ContainsFunc(st.Instances, func(i pando.InstanceStatus) bool { return i.Phase == pando.PhaseWarm })
	})
	awaitReady(w.t, w.p.Path(w.p.Host(), "/run/pando/sandbox"), 3)
}

// rotation is how long the newest ask of an instance took until what it asked for was in rotation, by Pando's own record.
func (w *whole) rotation(s *labtest.Service) time.Duration {
	w.t.Helper()
	all, err := w.p.API(w.p.Host()).Why(w.t.Context(), pando.DefaultService(pando.ServiceName(s.Name)), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	var newest *pando.Intent
	for _, b := range all {
		if i := b.Intent; i != nil && i.By.Kind == pando.AskerInstance && (newest == nil || i.Asked().After(newest.Asked())) {
			newest = i
		}
	}
	if newest == nil || newest.State != pando.IntentInRotation {
		w.t.Fatalf("the newest ask is %+v", newest)
	}
	return newest.History[len(newest.History)-1].At.Sub(newest.Asked())
}

// once lets the one instance of a service ask for another, waits for its first byte and lets it go again.
func (w *whole) once(s *labtest.Service) time.Duration {
	w.t.Helper()
	w.rest()
	first := ""
	for _, i := range s.AwaitInstances(1).Instances {
		if i.Phase == pando.PhaseInRotation {
			first = string(i.ID)
		}
	}
	type result struct {
		took time.Duration
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // the thread is in the client's network and ends with this goroutine
		took, err := w.ask(s, first)
		done <- result{took, err}
	}()
	r := <-done
	if r.err != nil {
		w.t.Fatal(r.err)
	}
	w.p.Pando("scale", s.Name, "1", "--wait")
	w.p.Pando("scale", s.Name, "auto")
	return r.took
}

func (w *whole) ask(s *labtest.Service, first string) (time.Duration, error) {
	ns, err := netns.GetFromPid(w.p.Lab.Client.Pid)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return 0, err
	}
	begin := time.Now()
	asked := make(chan error, 1)
	c, err := get(s.VIP, "/self?path=/v1/self/replicate&body="+url.QueryEscape(`{"reason":"a measurement"}`))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	go func() { asked <- granted(c) }()
	for time.Since(begin) < patience {
		a, err := get(s.VIP, "/")
		if err != nil {
			return 0, err
		}
		b := make([]byte, 512)
		n, err := a.Read(b)
		took := time.Since(begin)
		a.Close()
		if err == nil && !strings.Contains(string(b[:n]), first) {
			return took, <-asked
		}
	}
	return 0, fmt.Errorf("no byte of another instance of %s: %v", s.Name, <-asked)
}

// get sends a request on a connection of its own.
func get(vip, path string) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", vip+":80", patience)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: echo\r\nConnection: close\r\n\r\n", path)
	return c, err
}

func granted(c net.Conn) error {
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode >= 300 {
		err = fmt.Errorf("replicate: %s: %s", a.Status, text)
	}
	return err
}
