package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// page returns the answer to a request, by curl from a member of the lab.
func page(p *labtest.Pando, from, url string) labtest.Output {
	return p.Run(from, "curl", "-gsS", "--max-time", "5", url)
}

// A service answers at its host's own address, by both families and to the host itself. The program
// sees the client's own address, and open connections outlive the agent.
func TestAServiceAtTheHostsOwnAddress(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	h, c := p.Lab.Hosts[0], p.Lab.Client
	web := p.Deploy(labtest.Echo("web", `publish: {host: ["8443:80", "9007:7/udp"]}`,
		"scale: {min: 2, max: 4}"))
	web.AwaitInstances(2)
	six, own6 := "["+h.IPv6+"]", "["+c.IPv6+"]"
	for at, own := range map[string]string{h.IPv4: c.IPv4, six: own6} {
		got := page(p, labtest.Client, "http://"+at+":8443/from")
		if from, _, _ := strings.Cut(got.Text+"\n", "\n"); !strings.HasPrefix(from, own+":") {
			p.Errorf("by %s the program sees %q, want the client %s", at, got.Text, own)
		}
	}
	for _, at := range []string{"127.0.0.1", "[::1]", "localhost", h.IPv4, six} {
		if got := page(p, h.Name, "http://"+at+":8443/"); got.Code != 0 {
			p.Errorf("the host itself by %s: %s", at, got.Text)
		}
	}
	out := p.Run(labtest.Client, p.WithEcho(), "udp", net.JoinHostPort(h.IPv4, "9007"), "hello")
	if out.Code != 0 || !strings.Contains(out.Text, "hello") {
		p.Errorf("UDP: %d %s", out.Code, out.Text)
	}
	largeDatagrams(p, web)
	held := p.Start(labtest.Client, p.WithEcho(), "hold", net.JoinHostPort(h.IPv4, "8443"))
	held.AwaitText("holding")
	p.KillAgent(h.Name)
	if got := page(p, labtest.Client, "http://"+h.IPv4+":8443/"); got.Code != 0 {
		p.Errorf("without an agent: %s", got.Text)
	}
	p.Up(h.Name)
	web.Update(labtest.Echo("web", `publish: {host: ["8443:80"]}`, "scale: {min: 2, max: 4}",
		"environment: {TEXT: two}"))
	if out := held.Stop(); out.Code != 0 {
		p.Errorf("the connection broke: %s", out.Text)
	}
	web.AwaitPage(labtest.Client)
	takenPorts(p)
	p.Pando("rm", "web", "--wait")
	if got := page(p, labtest.Client, "http://"+h.IPv4+":8443/"); got.Code != 7 {
		p.Errorf("after its end: code %d, want 7, a refused connection: %s", got.Code, got.Text)
	}
}

// largeDatagrams sends datagrams that the client's network takes and the instance's link does not. The
// client learns the size, its kernel splits the next ones, and the drops are counted. Pieces that are
// too large are treated alike.
func largeDatagrams(p *labtest.Pando, web *labtest.Service) {
	h, d := p.Lab.Hosts[0], strings.Repeat("d", 1540)
	too := func() (n uint64) {
		all, err := p.API(h.Name).Hosts(p.Context())
		if err != nil || len(all) != 1 || all[0].Losses == nil {
			p.Fatal(all, err)
		}
		return all[0].Losses.Dropped[pando.DroppedTooLarge]
	}
	svc, err := p.API(h.Name).Service(p.Context(), pando.DefaultService("web"))
	if err != nil {
		p.Fatal(err)
	}
	for _, at := range []string{net.JoinHostPort(svc.VIP, "7"), net.JoinHostPort(svc.VIP6.String(), "7"),
		net.JoinHostPort(h.IPv4, "9007"), net.JoinHostPort(h.IPv6, "9007")} {
		for _, text := range []string{d, d + d} {
			p.Must(labtest.Client, "ip", "route", "flush", "cache")
			p.Must(labtest.Client, "ip", "-6", "route", "flush", "cache")
			before := too()
			out := p.Run(labtest.Client, p.WithEcho(), "udp", at, text)
			if out.Code != 0 || !strings.Contains(out.Text, text[:1000]) || too() == before {
				p.Errorf("%d bytes to %s: code %d, %d drops: %.200s", len(text), at, out.Code, too()-before,
					out.Text)
			}
		}
	}
}

// takenPorts deploys services with ports that belong to another service or program.
func takenPorts(p *labtest.Pando) {
	out := p.DeployFails(6, labtest.Echo("shop", "publish: {host: [\"8443:80\"]}"))
	has(p, out, "port 8443/tcp", "service web", "shop")
	other := p.Start(p.Host(), "python3", "-u", "-m", "http.server", "8555")
	other.AwaitText("Serving")
	defer other.Stop()
	out = p.DeployFails(6, labtest.Echo("shop", "publish: {host: [\"8555:80\"]}"))
	has(p, out, "port 8555/tcp", "python3 (process ")
	out = p.DeployFails(3, labtest.Echo("shop", "publish: {host: [\"7400:80\"]}"))
	has(p, out, "publish.host", "Pando's own")
}

// Every host of a cluster answers for a service, also one without an instance. The instance's host
// replies from the address that the client used.
func TestEveryHostAnswersAtItsOwnAddress(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, Flags: []string{"--pool", "1"}})
	web := p.Deploy(labtest.Echo("web", `publish: {host: "8443:80"}`, "place: {spread: host}",
		"scale: {min: 1, max: 2}"))
	web.AwaitInstances(1)
	for _, h := range p.Lab.Hosts {
		for _, at := range []string{h.IPv4, "[" + h.IPv6 + "]"} {
			p.Await("the page of "+at, func() (string, bool) {
				got := page(p, labtest.Client, fmt.Sprintf("http://%s:8443/from", at))
				return got.Text, strings.Contains(got.Text, p.Lab.Client.IPv4+":") ||
					strings.Contains(got.Text, "["+p.Lab.Client.IPv6+"]:")
			})
		}
	}
}

// edgeRequests is the least number of requests during the rollouts.
const edgeRequests = 1000

// A proxy at the host's own address and the service behind it are rolled out under load. No request
// fails, and each path reaches its service.
func TestTheEdgeRollsOutWithoutAFailedRequest(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	for _, name := range []string{"nginx.conf", "pando.yaml"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "examples", "edge", name))
		if err != nil {
			t.Fatal(err)
		}
		p.Write(name, string(b))
	}
	p.Must(p.Host(), "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj",
		"/CN=localhost", "-keyout", filepath.Join(p.Dir, "tls.key"), "-out",
		filepath.Join(p.Dir, "tls.crt"))
	p.Deploy(labtest.Echo("site", "environment: {TEXT: site}"))
	api := p.Deploy(labtest.Echo("api", "environment: {TEXT: api-1}", "scale: {min: 2, max: 4}"))
	file := filepath.Join(p.Dir, "pando.yaml")
	edge := p.DeployFile(file)
	dial := p.Dialer(labtest.Client)
	client := &http.Client{Timeout: labtest.Patience, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			return dial(address)
		},
	}}
	get := func(path string) (string, error) {
		resp, err := client.Get("https://" + p.Lab.Hosts[0].IPv4 + path)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d: %s", resp.StatusCode, b)
		}
		return string(b), err
	}
	if got, err := get("/"); err != nil || !strings.HasSuffix(got, " site\n") {
		t.Fatalf("/ is %q, %v", got, err)
	}
	var sent, failed atomic.Int64
	var rolled atomic.Bool
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for !rolled.Load() || sent.Load() < edgeRequests {
				got, err := get("/api/")
				if sent.Add(1); err != nil || !strings.Contains(got, " api-") {
					if failed.Add(1) <= 3 {
						t.Logf("a request failed: %q, %v", got, err)
					}
				}
			}
		})
	}
	api.Update(labtest.Echo("api", "environment: {TEXT: api-2}", "scale: {min: 2, max: 4}"))
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edge.Update(string(text) + "environment: {REVISION: two}\n")
	rolled.Store(true)
	workers.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), sent.Load())
	}
	t.Logf("0 of %d requests may fail", sent.Load())
	if got, err := get("/api/"); err != nil || !strings.HasSuffix(got, " api-2\n") {
		t.Errorf("after the rollout: %q, %v", got, err)
	}
}
