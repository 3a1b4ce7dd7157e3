package api

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"pando.run/pando"
)

// countingListener counts the writes of its connections.
type countingListener struct {
	net.Listener
	writes *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.writes}, err
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// described answers the view of an instance with many peers.
type described struct {
	pando.Self
	peers int
}

func (d described) Describe(context.Context, pando.InstanceID) (pando.SelfView, error) {
	v := pando.SelfView{VIP: "10.127.0.1", InRotation: 500}
	for n := range d.peers {
		i := pando.Instance{ID: pando.InstanceID(fmt.Sprint("web-", n)), Phase: pando.PhaseInRotation,
			Reason: "steered to on this host"}
		v.Peers = append(v.Peers, pando.InstanceStatus{Instance: i})
	}
	return v, nil
}

// Each write wakes the reader. A long view costs as few of them as a short one.
func TestAnAnswerIsWrittenAtOnce(t *testing.T) {
	for _, peers := range []int{0, 5, pando.PeersMax + 1} {
		var writes atomic.Int64
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "self.sock"))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: SelfHandler(described{peers: peers}, "web-1")}
		go s.Serve(countingListener{l, &writes})
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
		}
		client := http.Client{Transport: &http.Transport{DialContext: dial}}
		got, err := client.Get("http://self/v1/self")
		if err != nil {
			t.Fatal(err)
		}
		var v pando.SelfView
		if err := json.NewDecoder(got.Body).Decode(&v); err != nil || len(v.Peers) != peers {
			t.Errorf("%d peers of %d, %v", len(v.Peers), peers, err)
		}
		got.Body.Close()
		if got.ContentLength <= 0 || writes.Load() > 2 {
			t.Errorf("%d peers: %d bytes in %d writes, want a length and at most 2", peers,
				got.ContentLength, writes.Load())
		}
		client.CloseIdleConnections()
		s.Close()
	}
}

// A value without a form in JSON is a fault, and not an empty success.
func TestAnAnswerThatCannotBeWrittenIsAnError(t *testing.T) {
	w := httptest.NewRecorder()
	answer(w, http.StatusOK, map[string]float64{"load": math.NaN()})
	if w.Code != http.StatusInternalServerError || w.Header().Get("Content-Length") != "" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	w = httptest.NewRecorder()
	answer(w, http.StatusAccepted, map[string]int{"n": 1})
	if w.Code != http.StatusAccepted || w.Body.String() != "{\"n\":1}\n" ||
		w.Header().Get("Content-Length") != "8" {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
}
