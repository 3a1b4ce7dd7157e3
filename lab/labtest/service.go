package labtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pando.run/pando"
)

// Service is a service on a lab.
type Service struct {
	p    *Pando
	Name string
	VIP  string
	file string
}

// In returns the same service for a subtest on its lab (see Pando.In).
func (s *Service) In(p *Pando) *Service {
	q := *s
	q.p = p
	return &q
}

// Echo returns the spec of the program echo (see lab/labtest/echo) plus more lines.
func Echo(name string, lines ...string) string {
	return fmt.Sprintf("name: %s\ncommand: [./echo]\nports: [\"80:8080\", \"7:7007/udp\"]\nhealth: "+
		"{ready: \"tcp 8080\"}\n%s\n", name, strings.Join(lines, "\n"))
}

// WithEcho puts the program echo into the folder of this test's specs, visible to commands on its
// hosts, and returns its path.
func (p *Pando) WithEcho() string {
	p.Helper()
	path := filepath.Join(p.Dir, "echo")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	b, err := os.ReadFile(Build(p, "./lab/labtest/echo"))
	if err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o755); err != nil {
		p.Fatal(err)
	}
	return path
}

// Write writes a file into the test's folder and returns its path.
func (p *Pando) Write(name, text string) string {
	p.Helper()
	path := filepath.Join(p.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		p.Fatal(err)
	}
	return path
}

// Deploy deploys a spec on the first host and waits until it serves.
func (p *Pando) Deploy(spec string) *Service {
	p.Helper()
	s := p.service(spec)
	s.Update(spec)
	return s
}

// DeployFile deploys a spec file on the first host and waits until it serves. Paths in the file are
// relative to it.
func (p *Pando) DeployFile(path string) *Service {
	p.Helper()
	s := &Service{p: p, file: path}
	s.deploy()
	return s
}

// DeployOrdinals deploys a file of stateful and other services, and waits until each of them has n
// instances in rotation. It waits for each instance on its own, longer than the specs give one to be
// ready.
func (p *Pando) DeployOrdinals(path string, n int, names ...string) []*Service {
	p.Helper()
	p.Pando("deploy", path)
	var all []*Service
	for _, name := range names {
		s := &Service{p: p, Name: name, file: path}
		for k := range n {
			s.VIP = s.AwaitFor(5*Patience, fmt.Sprintf("%d of %d instances of %s", k+1, n, name),
				func(st pando.ServiceStatus) bool { return st.InRotation > k }).VIP
		}
		all = append(all, s)
	}
	return all
}

// DeployFails deploys a spec that must not serve, and returns the command's output.
func (p *Pando) DeployFails(code int, spec string) string {
	p.Helper()
	return p.PandoFails(code, "deploy", "--wait", p.service(spec).file)
}

func (p *Pando) service(spec string) *Service {
	p.Helper()
	p.WithEcho()
	name, _, _ := strings.Cut(strings.TrimPrefix(spec, "name: "), "\n")
	return &Service{p: p, Name: name, file: p.Write(name+".yaml", spec)}
}

// Update deploys a new spec of the service and waits until it serves.
func (s *Service) Update(spec string) {
	s.p.Helper()
	s.p.Write(filepath.Base(s.file), spec)
	s.deploy()
}

func (s *Service) deploy() {
	s.p.Helper()
	var st pando.ServiceStatus
	s.p.PandoJSON(&st, "deploy", "--wait", s.file)
	s.Name, s.VIP = string(st.Name), st.VIP
}

// UpdateFails deploys a new spec that must not serve, and returns the command's output.
func (s *Service) UpdateFails(code int, spec string) string {
	s.p.Helper()
	s.p.Write(filepath.Base(s.file), spec)
	return s.p.PandoFails(code, "deploy", "--wait", s.file)
}

// Status returns the service's status.
func (s *Service) Status() pando.ServiceStatus {
	s.p.Helper()
	st, err := s.p.API(s.p.Host()).Service(s.p.Context(),
		pando.DefaultService(pando.ServiceName(s.Name)))
	if err != nil {
		s.p.Fatal(err)
	}
	return st
}

// Await waits until the status of the service is as wanted. A missing answer is no failure before
// the deadline.
func (s *Service) Await(what string, want func(pando.ServiceStatus) bool) pando.ServiceStatus {
	s.p.Helper()
	return s.AwaitFor(Patience, what, want)
}

// AwaitFor is Await with another patience, for programs that take their time.
func (s *Service) AwaitFor(
	patience time.Duration, what string, want func(pando.ServiceStatus) bool,
) pando.ServiceStatus {
	s.p.Helper()
	var st pando.ServiceStatus
	s.p.AwaitFor(patience, what, func() (string, bool) {
		var err error
		st, err = s.p.API(s.p.Host()).Service(s.p.Context(),
			pando.DefaultService(pando.ServiceName(s.Name)))
		if err != nil {
			return err.Error(), false
		}
		text, _ := json.Marshal(st)
		return string(text), want(st)
	})
	return st
}

// AwaitInstances waits until exactly n instances exist and are in rotation.
func (s *Service) AwaitInstances(n int) pando.ServiceStatus {
	s.p.Helper()
	return s.Await(fmt.Sprintf("%d instances of %s in rotation", n, s.Name),
		func(st pando.ServiceStatus) bool {
			return st.InRotation == n && Running(st) == n
		})
}

// Running counts the instances of a service that are not in reserve.
func Running(st pando.ServiceStatus) int {
	n := 0
	for _, i := range st.Instances {
		if i.Phase != pando.PhaseWarm && !i.Warm {
			n++
		}
	}
	return n
}

// Why returns the output of `pando why`.
func (s *Service) Why() string {
	s.p.Helper()
	return s.p.Pando("why", s.Name)
}

// URL returns an address of the service's page.
func (s *Service) URL(path string) string { return "http://" + s.VIP + path }

// Get requests a page of the service from a member of the lab. The request must succeed.
func (s *Service) Get(from, path string) string {
	s.p.Helper()
	return strings.TrimSpace(s.p.Must(from, "curl", "-sS", "--fail", "--max-time", "10", s.URL(path)))
}

// AwaitPage waits until the service answers.
func (s *Service) AwaitPage(from string) {
	s.p.Helper()
	s.p.Await("the page of "+s.Name, func() (string, bool) {
		out := s.p.Run(from, "curl", "-sS", "--fail", "--max-time", "2", s.URL("/"))
		return out.Text, out.Code == 0
	})
}

// Hold keeps a connection to the service busy from a member of the lab until the process is
// stopped. Its exit code is 0 if the connection never broke.
func (s *Service) Hold(from string) *Process {
	s.p.Helper()
	r := s.p.Start(from, s.p.WithEcho(), "hold", s.VIP+":80")
	r.AwaitText("holding")
	return r
}

// Kill ends the program of an instance as a crash would.
func (s *Service) Kill(i pando.InstanceID) {
	s.p.Helper()
	for _, one := range s.Status().Instances {
		if one.ID == i {
			host, _, _ := strings.Cut(one.Endpoint, ":")
			_ = s.p.Run(string(one.Host), "curl", "-sS", "--max-time", "5",
				"http://"+host+":8080/exit?code=9")
			return
		}
	}
	s.p.Fatalf("%s has no instance %s", s.Name, i)
}

// Brief returns a duration as a spec's number of seconds.
func Brief(d time.Duration) string { return fmt.Sprintf("%gs", d.Seconds()) }
