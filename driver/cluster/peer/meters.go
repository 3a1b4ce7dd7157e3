package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"pando.run/pando"
)

const (
	metersBytesMax = 16 << 20           // of one measurement of a host
	metersWaitMax  = 2 * pando.MeterMax // between two of them; then the host counts as silent
)

// errSilent ends the stream of a host that sends nothing more.
var errSilent = errors.New("no measurement arrived in time")

// Meters streams the measurements of a host. A host that sends nothing ends the stream.
func (c *Client) Meters(ctx context.Context, h pando.Host) (<-chan pando.Meters, error) {
	own, end := context.WithCancelCause(ctx)
	watchdog := time.AfterFunc(metersWaitMax, func() { end(errSilent) })
	body, err := c.call(own, h, http.MethodGet, "/peer/meters", nil, nil)
	if err != nil {
		watchdog.Stop()
		end(nil)
		return nil, err
	}
	out := make(chan pando.Meters)
	go func() {
		defer close(out)
		defer body.Close()
		defer end(nil)
		defer watchdog.Stop()
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, metersBytesMax)
		for lines.Scan() {
			var v pando.Meters
			if json.Unmarshal(lines.Bytes(), &v) != nil {
				return
			}
			watchdog.Reset(metersWaitMax)
			select {
			case out <- v:
			case <-own.Done():
				return
			}
		}
	}()
	return out, nil
}

// sendMeters sends one line for each measurement. A reader that does not keep up misses some: only
// the newest one waits for it.
func sendMeters(a pando.HostAgent, w http.ResponseWriter, r *http.Request) {
	from, err := a.Meters(r.Context())
	if err != nil {
		writeProblem(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, lines := http.NewResponseController(w), json.NewEncoder(w)
	_ = out.Flush() // the asker receives the start of the stream
	for v := range from {
		if lines.Encode(v) != nil || out.Flush() != nil {
			return
		}
	}
}
