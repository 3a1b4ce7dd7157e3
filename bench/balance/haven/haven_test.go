//go:build bench

// Package haven repeats the four experiments of the HAVEN paper (§V, Fig. 10 to 13): 8 and 16
// members on four servers, a high and a low rate, five sizes of files, httperf as the client. Each
// round measures every way, in an order of its own. Every way gives the same replies.
//
// The paper has three client machines with five sessions each. One client stands here, with the
// links of one server of the paper for each four members and for a middlebox.
package haven

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"pando.run/pando/bench/balance/rig"
	"pando.run/pando/bench/sheet"
)

func TestMain(m *testing.M) {
	if os.Getenv(serving) != "" {
		fmt.Println(serveFiles())
		os.Exit(1)
	}
	rig.Main(m)
}

// The links, in megabits per second: of a server with its members, of a middlebox, and of the
// client machine.
const (
	serverLink = 1000
	middleLink = 1000
	clientLink = 3000
	servers    = 4
)

// experiment is one of the four of the paper.
type experiment struct {
	name         string
	members      int
	rate         int // connections per second of a session
	connections  int // of a session
	small, large int // requests per connection
}

var experiments = []experiment{
	{name: "16 members, high", members: 16, rate: 3, connections: 6, small: 50, large: 20},
	{name: "16 members, low", members: 16, rate: 2, connections: 4, small: 25, large: 10},
	{name: "8 members, high", members: 8, rate: 3, connections: 6, small: 50, large: 20},
	{name: "8 members, low", members: 8, rate: 2, connections: 4, small: 25, large: 10},
}

// files are the sizes, and whether the paper counts them as large.
var files = []struct {
	bytes int
	large bool
}{{1 << 10, false}, {10 << 10, false}, {100 << 10, false}, {1 << 20, true}, {10 << 20, true}}

// figures are the plots, beside those of the paper.
var figures = []struct{ folder, title, unit, paper string }{
	{"response", "Reply time, response (HAVEN Fig. 10)", "ms", "up to 50 ×"},
	{"transfer", "Reply time, transfer (HAVEN Fig. 11)", "ms", "2.1 ×"},
	{"rate", "Reply rate (HAVEN Fig. 12)", "replies per second", "3.8 ×"},
}

func TestHaven(t *testing.T) {
	for _, program := range []string{"httperf", "haproxy", "nft", "tc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: apt-get install httperf haproxy nftables iproute2", err)
		}
	}
	var sheets []*sheet.Sheet
	for _, f := range figures {
		sheets = append(sheets, sheet.New(t, f.folder))
	}
	rounds, _ := sheet.Rounds(5, 0)
	for _, e := range experiments {
		if sheet.Smoke() {
			e.connections, e.small, e.large = 2, 5, 1
		}
		t.Run(e.name, func(t *testing.T) { e.run(t, sheets, rounds) })
	}
	for n, s := range sheets {
		for _, e := range experiments {
			compare(s, n, e.name)
		}
		s.Publish(figures[n].title, figures[n].unit, "--log")
	}
}

// run measures every way of an experiment in every round.
func (e experiment) run(t *testing.T, sheets []*sheet.Sheet, rounds int) {
	h := newHall(t, e.members)
	for round := range rounds {
		replies := -1
		for n := range h.ways {
			w := h.ways[(n+round)%len(h.ways)]
			got := h.measure(t, w, e)
			if replies >= 0 && got.replies != replies {
				t.Errorf("%s gave %d replies, another way %d", w.name, got.replies, replies)
			}
			replies = got.replies
			for f, v := range []float64{got.response, got.transfer, got.rate} {
				sheets[f].Note(round, series(e.name, w.name), v)
			}
		}
	}
}

func series(experiment, way string) string { return experiment + ", " + way }

// compare adds the rows of an experiment: how many times better Pando is.
func compare(s *sheet.Sheet, figure int, experiment string) {
	for _, peer := range []string{haproxy, translation} {
		for _, own := range []string{byScore, byTurns} {
			a, b := series(experiment, peer), series(experiment, own)
			if figures[figure].folder == "rate" {
				a, b = b, a
			}
			ratio, goal, paper := s.Ratio(a, b), "", ""
			if peer == haproxy {
				goal, paper = "> 1 ×", figures[figure].paper
			}
			s.Row(fmt.Sprintf("HAVEN, %s: %s, %s against %s", experiment, figures[figure].folder, own,
				peer), goal, paper, fmt.Sprintf("%.2f × (medians %s and %s %s)", ratio,
				short(s.Median(series(experiment, peer))), short(s.Median(series(experiment, own))),
				figures[figure].unit), ratio > 1)
		}
	}
}

func short(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.*f", int(max(0, 2-math.Floor(math.Log10(max(v, 0.001))))), v)
}

// result is that of five sessions. Times are means over all replies, as in the paper.
type result struct {
	replies                  int
	response, transfer, rate float64
}

// measure runs five sessions of httperf at the same time, one for each file.
func (h *hall) measure(t *testing.T, w way, e experiment) (sum result) {
	t.Helper()
	if w.begin != nil {
		if err := w.begin(); err != nil {
			t.Fatal(err)
		}
	}
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, len(files))
	for _, f := range files {
		calls := e.small
		if f.large {
			calls = e.large
		}
		c := exec.Command("nsenter", "--net="+h.client.Link.Netns, "httperf", "--hog",
			"--server", w.to.Addr().String(), "--port", fmt.Sprint(w.to.Port()),
			"--uri", fmt.Sprintf("/%d", f.bytes), "--num-conns", fmt.Sprint(e.connections),
			"--num-calls", fmt.Sprint(calls), "--rate", fmt.Sprint(e.rate), "--timeout", "60")
		go func() {
			out, err := c.CombinedOutput()
			answers <- answer{string(out), err}
		}()
	}
	for range files {
		a := <-answers
		r, err := read(a.text)
		if a.err != nil || err != nil {
			t.Fatalf("httperf by %s: %v, %v\n%s", w.name, a.err, err, a.text)
		}
		sum.replies += r.replies
		sum.response += r.response * float64(r.replies)
		sum.transfer += r.transfer * float64(r.replies)
		sum.rate += r.rate * float64(r.replies)
	}
	if w.end != nil {
		if err := w.end(); err != nil {
			t.Fatal(err)
		}
	}
	n := float64(sum.replies)
	sum.response, sum.transfer, sum.rate = sum.response/n, sum.transfer/n, sum.rate/n
	return sum
}

// read reads the output of a session. An error of a connection fails it: every way must give the
// same replies. The rate is that over the session, because httperf samples its own every 5 s.
func read(text string) (r result, err error) {
	var connections, requests, failed int
	var lasted float64
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "Total: "):
			_, err = fmt.Sscanf(line, "Total: connections %d requests %d replies %d test-duration %f",
				&connections, &requests, &r.replies, &lasted)
		case strings.HasPrefix(line, "Reply time [ms]: "):
			_, err = fmt.Sscanf(line, "Reply time [ms]: response %f transfer %f", &r.response, &r.transfer)
		case strings.HasPrefix(line, "Errors: total "):
			_, err = fmt.Sscanf(line, "Errors: total %d", &failed)
		}
		if err != nil {
			return r, fmt.Errorf("%q: %w", line, err)
		}
	}
	if r.replies == 0 || lasted == 0 || failed > 0 || r.replies != requests {
		return r, fmt.Errorf("%d replies to %d requests, %d failed", r.replies, requests, failed)
	}
	r.rate = float64(r.replies) / lasted
	return r, nil
}
