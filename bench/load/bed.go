package load

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// Worker builds the program of bench/load/worker into the folder of the specs of a lab, and returns
// its path.
func Worker(t testing.TB, p *labtest.Pando) string {
	t.Helper()
	file := filepath.Join(p.Dir, "worker")
	c := exec.Command("go", "build", "-trimpath", "-o", file, "pando.run/pando/bench/load/worker")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build the worker: %v\n%s", err, out)
	}
	return file
}

// dialers is the usual number of connections that a load opens at the same time.
const dialers = 4

// Dialer opens connections from the client of a lab, 4 at the same time.
func Dialer(p *labtest.Pando) Dial {
	p.Helper()
	return DialerOf(p, dialers)
}

// DialerOf opens up to n connections from the client of a lab at the same time. A connection to an
// address without an answer occupies one of them until it has failed.
func DialerOf(p *labtest.Pando, n int) Dial {
	p.Helper()
	free := make(chan Dial, n)
	for range n {
		free <- p.Dialer(labtest.Client)
	}
	return func(address string) (net.Conn, error) {
		dial := <-free
		defer func() { free <- dial }()
		return dial(address)
	}
}

// Endpoints returns the own addresses of the instances of a service, with the worker's port.
func Endpoints(s *labtest.Service) (out []string) {
	for _, i := range s.Status().Instances {
		host, _, _ := net.SplitHostPort(i.Endpoint)
		out = append(out, net.JoinHostPort(host, "8080"))
	}
	return out
}

// HAProxy runs on the first host, balances the instances of a service and returns its address.
// words are lines of the configuration.
func HAProxy(
	p *labtest.Pando, s *labtest.Service, port int, words string,
) (address string) {
	p.Helper()
	address, _ = HAProxyProcess(p, s, port, words, "")
	return address
}

// HAProxyProcess is HAProxy with words at the end of each line of a server. It returns the process.
func HAProxyProcess(
	p *labtest.Pando, s *labtest.Service, port int, words, check string,
) (address string, proxy *labtest.Process) {
	p.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "global\n maxconn 8000\ndefaults\n mode tcp\n timeout connect 2s\n"+
		" timeout client 10s\n timeout server 10s\nlisten web\n bind :%d\n %s\n", port, words)
	for n, e := range Endpoints(s) {
		fmt.Fprintf(&b, " server s%d %s %s\n", n, e, check)
	}
	file := p.Write(fmt.Sprintf("haproxy-%d.cfg", port), b.String())
	proxy = p.Start(p.Host(), "/usr/sbin/haproxy", "-db", "-f", file)
	address = HostAddress(p, port)
	p.Await("HAProxy to answer", func() (string, bool) {
		out := p.Run(labtest.Client, "curl", "-sS", "--max-time", "2", "http://"+address+"/live")
		return out.Text + proxy.Text(), out.Code == 0
	})
	return address, proxy
}

// HostAddress returns a port at the address of the first host.
func HostAddress(p *labtest.Pando, port int) string {
	return fmt.Sprintf("%s:%d", p.Lab.Hosts[0].IPv4, port)
}

// Nftables translates a port of the first host to the instances of a service, one connection after
// the other in turn. It returns the address.
func Nftables(p *labtest.Pando, s *labtest.Service, port int) (address string) {
	p.Helper()
	var list []string
	for n, e := range Endpoints(s) {
		host, at, _ := net.SplitHostPort(e)
		list = append(list, fmt.Sprintf("%d : %s . %s", n, host, at))
	}
	rules := p.Write(fmt.Sprintf("nft-%d", port), fmt.Sprintf(`table ip peer%[1]d {
  chain pre { type nat hook prerouting priority dstnat;
    ip daddr %[2]s tcp dport %[1]d dnat ip to numgen inc mod %[4]d map { %[3]s }
  }
  chain post { type nat hook postrouting priority srcnat;
    ct status dnat ct original ip daddr %[2]s masquerade
  }
}
`, port, p.Lab.Hosts[0].IPv4, strings.Join(list, ", "), len(list)))
	p.Must(p.Host(), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward; nft -f "+rules)
	address = HostAddress(p, port)
	p.Await("the translated port", func() (string, bool) {
		out := p.Run(labtest.Client, "curl", "-sS", "--max-time", "2", "http://"+address+"/live")
		return out.Text, out.Code == 0
	})
	return address
}

// Use returns the processor seconds of each instance of a service so far.
func Use(p *labtest.Pando, s *labtest.Service) map[pando.InstanceID]float64 {
	p.Helper()
	all, err := p.API(p.Host()).Stats(p.Context(), pando.DefaultService(pando.ServiceName(s.Name)))
	if err != nil {
		p.Fatal(err)
	}
	out := map[pando.InstanceID]float64{}
	for _, u := range all {
		out[u.Instance] = u.CPUSeconds
	}
	return out
}

// Daemons returns the processor seconds of the server and the agent of the first host so far.
func Daemons(p *labtest.Pando) (seconds float64) {
	p.Helper()
	for _, role := range []string{"server", "agent"} {
		pid := strings.TrimSpace(p.Must(p.Host(), "cat", "/run/pando/"+role+".pid"))
		tasks := p.Path(p.Host(), "/proc/"+pid+"/task")
		all, err := os.ReadDir(tasks)
		if err != nil {
			p.Fatal(err)
		}
		for _, task := range all {
			text, err := os.ReadFile(filepath.Join(tasks, task.Name(), "schedstat"))
			if words := strings.Fields(string(text)); err == nil && len(words) > 0 {
				n, _ := strconv.ParseInt(words[0], 10, 64)
				seconds += time.Duration(n).Seconds()
			}
		}
	}
	return seconds
}
