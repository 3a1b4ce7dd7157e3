package process

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// keeping bounds the logs of ended instances. A sweep removes logs beyond a bound, the oldest of the
// tenant with the most first. So a tenant whose instances crash in a loop loses its own evidence.
type keeping struct {
	age        time.Duration // since the last line
	perService int           // folders
	bytes      int64         // of all of them
	// older bounds the bytes of the rotated files of living instances. Their newest files stay.
	older int64
	// block is the room that the smallest file or folder takes. Without it, the empty logs of
	// services that come and go would count for nothing.
	block int64
}

// kept bounds the logs of dead instances: long enough to ask why, short of a full disk.
var kept = keeping{age: 7 * 24 * time.Hour, perService: 20, bytes: 1 << 30,
	older: 4 << 30, block: 4 << 10}

const (
	sweepEvery = time.Hour        // because logs age
	sweepRest  = 30 * time.Second // between two sweeps, at any number of exits
)

// sweeping removes old logs while the driver lives: soon after instances end, and every hour.
func (d *Driver) sweeping() {
	defer d.wg.Done()
	for {
		if err := sweep(d.LogDir, d.livingLogs, d.Clock.Now(), kept); err != nil {
			d.Log.Warn("old logs stay until the sandboxes can be listed", "error", err)
		}
		for _, wait := range []struct {
			most time.Duration
			news <-chan struct{}
		}{{sweepRest, nil}, {sweepEvery, d.gone}} {
			timer, stop := d.Clock.After(wait.most)
			select {
			case <-timer:
			case <-wait.news:
			case <-d.done:
				stop()
				return
			}
			stop()
		}
	}
}

// tellGone wakes the sweep.
func (d *Driver) tellGone() {
	select {
	case d.gone <- struct{}{}:
	default: // it is awake already
	}
}

// livingLogs returns the log folders of instances that have a sandbox. An error says that there may
// be more.
func (d *Driver) livingLogs() (map[string]bool, error) {
	out := map[string]bool{}
	all, err := records(d.RunDir)
	for _, s := range all {
		out[logName(s.Service, s.Instance)] = true
	}
	return out, err
}

// oldLog is the log folder of one instance.
type oldLog struct {
	name  string // below the folder of logs
	bytes int64
	at    time.Time // of its newest line
}

// logTenant returns the tenant of a log by its name.
func logTenant(name string) pando.Tenant {
	t, _, _ := strings.Cut(name, string(filepath.Separator))
	return pando.Tenant(t)
}

// sweep removes the logs beyond the bounds. An instance has its record before its log, so sweep
// calls living after it has listed the folders. It removes nothing while living is not known.
func sweep(dir string, living func() (map[string]bool, error), now time.Time, k keeping) error {
	services, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
	all := map[string][]oldLog{}
	for _, service := range services {
		all[service] = logsBelow(dir, service, k.block)
	}
	live, err := living()
	if err != nil {
		return err
	}
	trimLiving(dir, live, k.older)
	var rest []oldLog
	for _, logs := range all {
		logs = slices.DeleteFunc(logs, func(l oldLog) bool { return live[l.name] })
		slices.SortFunc(logs, newestFirst)
		for n, l := range logs {
			if n >= k.perService || now.Sub(l.at) > k.age {
				_ = os.RemoveAll(filepath.Join(dir, l.name)) // the next sweep tries again
				continue
			}
			rest = append(rest, l)
		}
	}
	slices.SortFunc(rest, func(a, b oldLog) int { return newestFirst(b, a) })
	pieces := make([]share.Piece[pando.Tenant], len(rest))
	for n, l := range rest {
		pieces[n] = share.Piece[pando.Tenant]{Owner: logTenant(l.name), Size: l.bytes}
	}
	for n := range share.Trim(pieces, k.bytes) {
		_ = os.RemoveAll(filepath.Join(dir, rest[n].name))
	}
	return nil
}

// trimLiving removes rotated files of living instances, the oldest of the tenant with the most first,
// until all of them are within one bound. A shim never writes to a rotated file again.
func trimLiving(dir string, living map[string]bool, most int64) {
	type rotated struct {
		share.Piece[pando.Tenant]
		path string
		at   time.Time
	}
	var all []rotated
	for name := range living {
		files, _ := filepath.Glob(filepath.Join(dir, name, "log.*"))
		for _, path := range files {
			if info, err := os.Stat(path); err == nil {
				all = append(all, rotated{share.Piece[pando.Tenant]{Owner: logTenant(name), Size: info.Size()},
					path, info.ModTime()})
			}
		}
	}
	slices.SortFunc(all, func(a, b rotated) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.path, b.path))
	})
	pieces := make([]share.Piece[pando.Tenant], len(all))
	for n, f := range all {
		pieces[n] = f.Piece
	}
	for n := range share.Trim(pieces, most) {
		path := all[n].path
		_ = os.Remove(path) // the next sweep tries again
		_ = os.Remove(filepath.Join(filepath.Dir(path),
			"times"+strings.TrimPrefix(filepath.Base(path), "log")))
	}
}

func newestFirst(a, b oldLog) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.name, b.name)) }

// logsBelow lists the logs of a service. A file or a folder counts as a block at least.
func logsBelow(dir, service string, block int64) (out []oldLog) {
	folders, _ := os.ReadDir(service)
	for _, folder := range folders {
		name, err := filepath.Rel(dir, filepath.Join(service, folder.Name()))
		if err != nil || !folder.IsDir() {
			continue
		}
		l := oldLog{name: name, bytes: block}
		files, _ := os.ReadDir(filepath.Join(dir, name))
		for _, f := range files {
			if info, err := f.Info(); err == nil {
				l.bytes += max(info.Size(), block)
				if info.ModTime().After(l.at) {
					l.at = info.ModTime()
				}
			}
		}
		if info, err := folder.Info(); err == nil && l.at.IsZero() {
			l.at = info.ModTime()
		}
		out = append(out, l)
	}
	return out
}
