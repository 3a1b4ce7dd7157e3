//go:build bench

// Package asks measures replicate() on two virtual hosts: the leader's, and another one. Both run
// the same service. The time from the ask to its durable answer is taken by the asking instance,
// and that to the first byte by a client on the same host.
package asks

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/lab/labtest"
)

const (
	rounds = 30
	pause  = 200 * time.Millisecond // between two asks: the pool fills up again
)

// bench is one run.
type bench struct {
	*labtest.Pando
	samples map[string][]float64
	out     *csv.Writer
}

// side is a service on one of the hosts.
type side struct {
	*labtest.Service
	name string
	dial func(address string) (net.Conn, error)
}

func TestAsks(t *testing.T) {
	f, err := os.Create("results.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := &bench{samples: map[string][]float64{}, out: csv.NewWriter(f),
		Pando: labtest.UpWith(t, labtest.Options{Hosts: 2, Idle: true})}
	b.Up(b.Host())
	b.Join(b.Hosts[1])
	_ = b.out.Write([]string{"round", "series", "value"})
	text, err := os.ReadFile(labtest.Build(t, "./bench/service/replicate/asker"))
	if err != nil {
		t.Fatal(err)
	}
	b.Write("asker", string(text))
	var sides []side
	for n, name := range []string{"the leader's host", "another host"} {
		host := b.Hosts[n]
		s := b.Deploy(fmt.Sprintf("name: web%d\ncommand: [./asker]\nports: [\"80:8080\"]\n"+
			"scale: {min: 1, max: 3}\nplace: {only: host=%s}\n", n, host))
		sides = append(sides, side{s, name, b.Dialer(host)})
	}
	count, err := strconv.Atoi(cmp.Or(os.Getenv("ROUNDS"), strconv.Itoa(rounds)))
	if err != nil {
		t.Fatal(err)
	}
	for round := range count {
		for n := range sides { // each round begins with the other side
			b.round(round, sides[(n+round)%len(sides)])
		}
	}
	b.out.Flush()
	b.publish()
}

func (b *bench) add(round int, series string, d time.Duration) {
	ms := float64(d) / 1e6
	b.samples[series] = append(b.samples[series], ms)
	if err := b.out.Write([]string{fmt.Sprint(round), series, fmt.Sprintf("%.3f", ms)}); err != nil {
		b.Fatal(err)
	}
}

// round lets the only instance of a side ask for a copy. The copy then leaves again.
func (b *bench) round(round int, s side) {
	first := s.Await("one instance", func(st pando.ServiceStatus) bool {
		return len(st.Instances) == 1 && st.InRotation == 1
	}).Instances[0]
	if err := pando.Sleep(b.Context(), clock.Clock{}, pause); err != nil {
		b.Fatal(err)
	}
	began, took := b.ask(s, first.Endpoint, "replicate")
	b.add(round, "replicate() answered, "+s.name, took)
	for end := time.Now().Add(labtest.Patience); ; {
		name, err := exchange(s, s.VIP+":80", "GET /")
		if err == nil && name != string(first.ID) {
			break
		}
		if time.Now().After(end) {
			b.Fatalf("no copy of %s answers: %v", s.Name, err)
		}
	}
	b.add(round, "first byte, "+s.name, time.Since(began))
	for _, i := range s.AwaitInstances(2).Instances {
		if i.ID != first.ID {
			b.ask(s, i.Endpoint, "halt")
			b.ask(s, i.Endpoint, "die")
		}
	}
}

// ask lets an instance ask. It returns the start and the duration, by the instance's own clock.
func (b *bench) ask(s side, endpoint, verb string) (began time.Time, took time.Duration) {
	body, err := exchange(s, endpoint, "POST /"+verb)
	var v struct{ Began, Took int64 }
	if err != nil || json.Unmarshal([]byte(body), &v) != nil {
		b.Fatalf("%s: %v %s", verb, err, body)
	}
	return time.Unix(0, v.Began), time.Duration(v.Took)
}

func exchange(s side, address, request string) (body string, err error) {
	conn, err := s.dial(address)
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
		err = errors.Join(err, errors.New(answer.Status))
	}
	return string(text), err
}

func (b *bench) publish() {
	at := func(series string, share float64) float64 {
		v := slices.Sorted(slices.Values(b.samples[series]))
		return v[min(len(v)-1, int(float64(len(v))*share))]
	}
	const asked, byte1 = "replicate() answered, ", "first byte, "
	const here, there = "the leader's host", "another host"
	verdict := func(held bool) string { return map[bool]string{true: "held", false: "missed"}[held] }
	r := at(asked+there, .5) / at(asked+here, .5)
	rows := []string{
		fmt.Sprintf("replicate() accepted and durable on another host, against the leader's host, p50 | "+
			"≤ 1.3 × | | %.2f × (%.2f ms against %.2f ms; p99 %.1f ms against %.1f ms) | %s", r,
			at(asked+there, .5), at(asked+here, .5), at(asked+there, .99), at(asked+here, .99),
			verdict(r <= 1.3)),
		fmt.Sprintf("replicate() on another host → first byte of the new process through the VIP, p50 | "+
			"≤ 30 ms | | %.1f ms (on the leader's host %.1f ms) | %s", at(byte1+there, .5),
			at(byte1+here, .5), verdict(at(byte1+there, .5) <= 30)),
	}
	for _, row := range rows {
		b.Log(row)
	}
	if os.Getenv("UNPUBLISHED") != "" {
		return
	}
	args := []string{"cluster/asks", "--title", "Asks of another host", "--unit", "ms", "--log"}
	for _, row := range rows {
		args = append(args, "--row", row)
	}
	if out, err := exec.Command("../../publish", args...).CombinedOutput(); err != nil {
		b.Fatalf("publish: %v\n%s", err, out)
	}
}
