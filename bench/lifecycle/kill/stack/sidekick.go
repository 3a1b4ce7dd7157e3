package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// sidekick keeps the address of one container in etcd while its program answers.
type sidekick struct {
	store         clientv3.KV
	name, address string
	every         time.Duration // between two looks
}

// register looks at the program until ctx ends.
func (s *sidekick) register(ctx context.Context) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	listed := false
	for {
		if up := s.answers(ctx); up != listed && s.write(ctx, up) == nil {
			listed = up
			fmt.Println(s.name, "is listed:", up)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *sidekick) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.every)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/live", nil)
	if err != nil {
		return false
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return false
	}
	a.Body.Close()
	return a.StatusCode == http.StatusOK
}

func (s *sidekick) write(ctx context.Context, up bool) (err error) {
	if up {
		_, err = s.store.Put(ctx, prefix+s.name, s.address)
	} else {
		_, err = s.store.Delete(ctx, prefix+s.name)
	}
	return err
}
