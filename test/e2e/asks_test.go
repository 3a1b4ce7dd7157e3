package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
	"pando.run/pando/world"
)

// asksSeen are the records of asks and instances in a store, from its history.
type asksSeen struct {
	mu        sync.Mutex
	first     map[pando.IntentID]pando.Intent // the first version of each ask
	instances map[pando.IntentID]map[pando.InstanceID]bool
}

// watchAsks follows the store of a server until the test ends.
func watchAsks(p *labtest.Pando, host string) *asksSeen {
	p.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"unix://" + p.Path(host, "/run/pando/store.sock")},
	})
	if err != nil {
		p.Fatal(err)
	}
	s := &asksSeen{first: map[pando.IntentID]pando.Intent{},
		instances: map[pando.IntentID]map[pando.InstanceID]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	w := c.Watch(ctx, string(pando.Root), clientv3.WithPrefix(), clientv3.WithFilterDelete())
	var reading sync.WaitGroup
	reading.Go(func() {
		for batch := range w {
			for _, e := range batch.Events {
				s.take(pando.Record{Key: pando.Key(e.Kv.Key), Value: e.Kv.Value}, e.IsCreate())
			}
		}
	})
	p.Cleanup(func() { stop(); reading.Wait(); c.Close() })
	return s
}

func (s *asksSeen) take(r pando.Record, created bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Key.Kind() {
	case pando.KindIntent:
		var i pando.Intent
		if err := world.Decode(r, &i); err == nil && created {
			s.first[i.ID] = i
		}
	case pando.KindInstance:
		var i pando.Instance
		if err := world.Decode(r, &i); err == nil && i.Intent != "" {
			if s.instances[i.Intent] == nil {
				s.instances[i.Intent] = map[pando.InstanceID]bool{}
			}
			s.instances[i.Intent][i.ID] = true
		}
	}
}

// direct reports whether an ask of a service was written with its answer.
func (s *asksSeen) direct(of string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.first {
		asked := i.By.Kind == pando.AskerInstance && string(i.Service.Name) == of
		if asked && i.State != pando.IntentAsked {
			return true
		}
	}
	return false
}

// forget makes direct look at later asks only.
func (s *asksSeen) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.first)
}

// Asks of every host go to the leader and are answered in one commit, also after the leader's
// death. Asks on their way at its death are answered once, or refused.
func TestEveryHostAsksTheLeader(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	homes, held := onEveryHost(p)
	store := watchAsks(p, p.Hosts[2])
	allDirect := func(when string) {
		t.Helper()
		store.forget()
		for host, s := range homes {
			p.Await(fmt.Sprintf("an ask of %s on %s in one commit, %s", s.Name, host, when),
				func() (string, bool) {
					return askOnce(p, s), store.direct(s.Name)
				})
		}
	}
	allDirect("with all servers")
	var storm sync.WaitGroup
	for _, s := range homes {
		storm.Go(func() {
			for range 5 {
				askOnce(p, s)
			}
		})
	}
	p.KillServer(p.Host())
	storm.Wait()
	allDirect("after the death of the leader")
	p.Up(p.Host())
	allDirect("after its return")
	for _, h := range held {
		if out := h.Stop(); out.Code != 0 {
			t.Errorf("a connection was broken: %s", out.Text)
		}
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	for ask, all := range store.instances {
		if len(all) > 1 {
			t.Errorf("ask %s got the instances %v", ask, all)
		}
	}
}

// askOnce lets an instance ask for a copy. A refusal at scale.max is an answer.
func askOnce(p *labtest.Pando, s *labtest.Service) string {
	return p.Run(labtest.Client, "curl", "-sS", "--max-time", "10",
		s.URL("/self?path=/v1/self/replicate&body=%7B%7D")).Text
}
