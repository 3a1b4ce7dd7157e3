package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/logs"
)

// unheard returns why a host is missing in an answer that all hosts give together. Only a host that
// was not reached "does not answer"; any other error is its answer.
func unheard(h pando.HostName, err error) string {
	switch {
	case errors.Is(err, pando.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("host %s does not answer: %v", h, err)
	case errors.Is(err, context.Canceled):
		return fmt.Sprintf("host %s was not asked to the end: %v", h, err)
	}
	return fmt.Sprintf("host %s answers with an error: %v", h, err)
}

// Bounds of the check of hosts whose logs are followed.
const (
	answerWait  = time.Second // for the answer of a host
	silentLooks = 2           // without an answer in turn: the host is named
)

// nameSilent adds a line for each followed instance whose host stops to answer, and another when the
// host answers again. Their source alone shows neither: a program that prints nothing looks the same.
func (f *follower) nameSilent(ctx context.Context, st pando.ServiceStatus) {
	of := map[pando.HostName][]pando.InstanceID{}
	for _, i := range st.Instances {
		if f.open[i.ID] {
			of[i.Host] = append(of[i.Host], i.ID)
		}
	}
	failed := map[pando.HostName]error{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, h := range f.hosts() {
		if len(of[h.Name]) == 0 {
			continue
		}
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, answerWait)
			defer cancel()
			if _, err := f.Peers.Losses(ctx, h); errors.Is(err, pando.ErrUnreachable) {
				mu.Lock()
				defer mu.Unlock()
				failed[h.Name] = err
			}
		})
	}
	asking.Wait()
	for h, ids := range of {
		var line func(pando.InstanceID) pando.LogLine
		now, err := f.Clock.Now(), failed[h]
		switch {
		case err == nil && f.silent[h] >= silentLooks:
			line = func(i pando.InstanceID) pando.LogLine {
				return pando.LogLine{At: now, Instance: i, Text: "(its log can be read again)"}
			}
			fallthrough
		case err == nil:
			delete(f.silent, h)
		default:
			if f.silent[h]++; f.silent[h] == silentLooks {
				line = func(i pando.InstanceID) pando.LogLine { return unread(i, err.Error(), now) }
			}
		}
		if line != nil {
			var said []pando.LogLine
			for _, i := range ids {
				said = append(said, line(i))
			}
			f.mixer.Add(logs.Slice(said), nil)
		}
	}
}
