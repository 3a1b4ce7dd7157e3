//go:build bench

// Package replicate measures the cost of a copy. It measures the time from replicate() to its
// durable answer and to the first byte of the new instance, and from die() to an empty place. One
// peer is a durable put into the same store. Another is the bare kernel: a network namespace, a
// veth pair, clone and exec of the same program. The peer of an image's instance is crun.
package replicate

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/lab/labtest"
)

const rounds = 30

// bench is one run.
type bench struct {
	*labtest.Pando
	dial    func(address string) (net.Conn, error)
	ask     chan<- awaited
	store   *clientv3.Client
	samples map[string][]float64
	out     *csv.Writer
}

func (b *bench) add(round int, series string, d time.Duration) {
	ms := float64(d) / 1e6
	b.samples[series] = append(b.samples[series], ms)
	if err := b.out.Write([]string{fmt.Sprint(round), series, fmt.Sprintf("%.3f", ms)}); err != nil {
		b.Fatal(err)
	}
}

const (
	put, accepted = "one durable put", "replicate() answered"
	// The first put after a pause, because an ask also comes after a pause.
	restedPut         = "one durable put, the first after a rest"
	bare, cold, woken = "namespace + veth + exec", "replicate(), new process", "replicate(), warm"
	crunAlone, imaged = "namespace + veth + crun run", "replicate(), image"
	died, reaped      = "die() → sandbox and record gone", "… its link and folder, too"
)

func TestReplicate(t *testing.T) {
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := &bench{Pando: labtest.Up(t), samples: map[string][]float64{}, out: csv.NewWriter(f)}
	if err := b.out.Write([]string{"round", "series", "value"}); err != nil {
		t.Fatal(err)
	}
	b.dial, b.ask = b.Dialer(b.Host()), b.probes()
	b.store, err = clientv3.New(clientv3.Config{
		Endpoints: []string{"unix://" + b.Path(b.Host(), "/run/pando/store.sock")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.store.Close()
	asker := labtest.Build(t, "./bench/service/replicate/asker")
	text, err := os.ReadFile(asker)
	if err != nil {
		t.Fatal(err)
	}
	program := b.Write("asker", string(text))
	spec := "name: %s\ncommand: [./asker]\nports: [\"80:8080\"]\nscale: {min: 1, max: 3%s}\n"
	plain := b.Deploy(fmt.Sprintf(spec, "plain", ""))
	warm := b.Deploy(fmt.Sprintf(spec, "warm", ", warm: 1"))
	container := b.newBundle(text)
	b.SaveImage("image.tar", b.Image(runtime.GOARCH, v1.Config{Entrypoint: []string{"/app/asker"}},
		map[string][]byte{"/app/asker": text}))
	image := b.Deploy("name: image\nimage: docker-archive:image.tar\nports: [\"80:8080\"]\n" +
		"scale: {min: 1, max: 3}\n")
	for round := range rounds {
		b.rest()
		b.put(round)
		b.add(round, bare, b.bare(round, program))
		b.rest()
		b.round(round, plain, cold)
		b.rest()
		b.round(round, warm, woken)
		b.rest()
		b.add(round, crunAlone, b.crun(round, container))
		b.rest()
		b.round(round, image, imaged)
	}
	b.out.Flush()
	b.publish()
}

// pool is the number of sandboxes that Pando keeps ready.
const pool = 3

// rest waits until the work of the last round is done: the pool is full and the machine is idle.
func (b *bench) rest() {
	b.Await("the pool to be full", func() (string, bool) {
		found, _ := filepath.Glob(b.Path(b.Host(), "/run/pando/sandbox/*/slot.json"))
		free := 0
		for _, file := range found {
			var slot struct{ Instance pando.InstanceID }
			text, err := os.ReadFile(file)
			if err == nil && json.Unmarshal(text, &slot) == nil && slot.Instance == "" {
				free++
			}
		}
		return fmt.Sprint(free), free == pool
	})
	if err := pando.Sleep(b.Context(), clock.Clock{}, 100*time.Millisecond); err != nil {
		b.Fatal(err)
	}
}

// put makes durable writes of the size of an intent.
func (b *bench) put(round int) {
	value := string(make([]byte, 600))
	ctx, cancel := context.WithTimeout(b.Context(), labtest.Patience)
	defer cancel()
	for n := range 3 {
		began := time.Now()
		if _, err := b.store.Put(ctx, "bench/put", value); err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		if b.add(round, put, took); n == 0 {
			b.add(round, restedPut, took)
		}
	}
}

// round lets an instance ask for a copy, and lets the copy leave again.
func (b *bench) round(round int, s *labtest.Service, series string) {
	first := s.Await("one instance, and its reserve", func(st pando.ServiceStatus) bool {
		reserve := 0
		for _, i := range st.Instances {
			if i.Phase == pando.PhaseWarm {
				reserve++
			}
		}
		return labtest.Running(st) == 1 && st.InRotation == 1 && reserve == st.Scale.Warm
	}).Instances
	asker := first[slices.IndexFunc(first, func(i pando.InstanceStatus) bool {
		return i.Phase.TakesFlows()
	})]
	began, took := b.call(asker.Endpoint, "replicate")
	b.add(round, accepted, took)
	b.add(round, series, b.first(s.VIP+":80", string(asker.ID)).Sub(began))
	b.leave(round, s, asker.ID)
}

// leave lets the copy halt and die. It waits until its record, its processes and its folder are
// gone.
func (b *bench) leave(round int, s *labtest.Service, stays pando.InstanceID) {
	st := s.AwaitInstances(2)
	i := st.Instances[slices.IndexFunc(st.Instances, func(i pando.InstanceStatus) bool {
		return i.ID != stays && i.Phase.TakesFlows()
	})]
	folder, shim := b.slot(i.ID)
	b.call(i.Endpoint, "halt")
	s.Await("the copy is drained", func(st pando.ServiceStatus) bool {
		return slices.ContainsFunc(st.Instances,
			func(v pando.InstanceStatus) bool { return v.ID == i.ID && v.Phase == pando.PhaseDrained })
	})
	began, _ := b.call(i.Endpoint, "die")
	s.Await("the copy's record is gone", func(st pando.ServiceStatus) bool {
		return !slices.ContainsFunc(st.Instances,
			func(v pando.InstanceStatus) bool { return v.ID == i.ID })
	})
	gone := func(path string) func() (string, bool) {
		return func() (string, bool) {
			_, err := os.Stat(path)
			return path, os.IsNotExist(err)
		}
	}
	b.Await("the copy's processes are gone", gone(shim))
	b.add(round, died, time.Since(began))
	b.Await("the rest of the copy's sandbox is gone", gone(folder))
	b.add(round, reaped, time.Since(began))
}

// slot returns the folder of an instance's sandbox, and its first process, which ends last.
func (b *bench) slot(id pando.InstanceID) (folder, shim string) {
	found, _ := filepath.Glob(b.Path(b.Host(), "/run/pando/sandbox/*/slot.json"))
	for _, file := range found {
		var slot struct {
			Instance pando.InstanceID
			PID      int
		}
		text, err := os.ReadFile(file)
		if err == nil && json.Unmarshal(text, &slot) == nil && slot.Instance == id {
			return filepath.Dir(file), b.Path(b.Host(), fmt.Sprintf("/proc/%d", slot.PID))
		}
	}
	b.Fatalf("%s has no sandbox", id)
	return "", ""
}

// call requests an ask from an instance, at the instance's own address.
func (b *bench) call(endpoint, verb string) (began time.Time, took time.Duration) {
	body, err := b.exchange(endpoint, "POST /"+verb)
	var v struct{ Began, Took int64 }
	if err != nil || json.Unmarshal([]byte(body), &v) != nil {
		b.Fatalf("%s: %v %s", verb, err, body)
	}
	return time.Unix(0, v.Began), time.Duration(v.Took)
}

func (b *bench) exchange(address, request string) (body string, err error) {
	conn, err := b.dial(address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(labtest.Patience)); err != nil {
		return "", err
	}
	fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		request)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s", answer.Status)
	}
	return string(text), err
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func (b *bench) publish() {
	m := func(series string) float64 { return median(b.samples[series]) }
	p99 := slices.Sorted(slices.Values(b.samples[accepted]))
	verdict := func(held bool) string { return map[bool]string{true: "held", false: "missed"}[held] }
	ratio := func(series, peer string, goal float64) (string, string) {
		r := m(series) / m(peer)
		return fmt.Sprintf("%.2f × (%.2f ms against %.2f ms)", r, m(series), m(peer)), verdict(r <= goal)
	}
	a, av := ratio(accepted, put, 3)
	w, wv := ratio(woken, bare, 0.6)
	c, cv := ratio(cold, bare, 2)
	i, iv := ratio(imaged, crunAlone, 0.5)
	rows := []string{
		fmt.Sprintf("replicate() accepted and durable (ask, answer and placement in one write), "+
			"against one durable put into the same store | ≤ 3 × | | %s; against the first put after a "+
			"rest, as an ask comes after one, %.2f ×; p99 %.1f ms | %s",
			a, m(accepted)/m(restedPut), p99[len(p99)*99/100], av),
		fmt.Sprintf("replicate() → first byte through the VIP, warm, against namespace + veth + clone "+
			"+ exec | ≤ 0.6 × (≈ 5 ms) | | %s | %s", w, wv),
		fmt.Sprintf("the same, new process | ≤ 2 × (≈ 25 ms) | | %s | %s", c, cv),
		fmt.Sprintf("the same, new instance of an image, its layers present | ≤ 15 ms p50 | | %.1f ms "+
			"p50 | %s", m(imaged), verdict(m(imaged) <= 15)),
		fmt.Sprintf("the same against namespace + veth + crun run of the same program | ≤ 0.5 × | | %s "+
			"| %s", i, iv),
		fmt.Sprintf("die() → record and every process of the sandbox gone | ≤ 50 ms p50 | | %.1f ms "+
			"p50; its link and folder, too: %.1f ms | %s", m(died), m(reaped), verdict(m(died) <= 50)),
	}
	args := []string{"service/replicate", "--title", "What a copy costs", "--unit", "ms", "--log"}
	for _, r := range rows {
		args = append(args, "--row", r)
	}
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		b.Fatalf("publish: %v\n%s", err, out)
	}
}
