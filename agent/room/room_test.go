package room

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

const mib = 1 << 20

// drive is a disk on which volumes grow when a test says so.
type drive struct {
	mu    sync.Mutex // the guard looks while the test writes
	bytes int64
	used  map[pando.VolumePart]pando.VolumeUse
	other int64
	slow  time.Duration // of a measurement
	reads int
}

// set changes the disk.
func (d *drive) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func (d *drive) Room() (pando.DiskRoom, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	free := d.bytes - d.other
	for _, u := range d.used {
		free -= u.Bytes
	}
	return pando.DiskRoom{Bytes: d.bytes, Free: free}, nil
}

func (d *drive) MeasureVolume(ctx context.Context, p pando.VolumePart) (pando.VolumeUse, error) {
	d.mu.Lock()
	d.reads++
	use, slow := d.used[p], d.slow
	d.mu.Unlock()
	time.Sleep(slow)
	return use, nil
}

// measured returns how often a volume was measured.
func (d *drive) measured() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reads
}

func (d *drive) grow(p pando.VolumePart, mibs int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.used[p]
	u.Bytes += mibs * mib
	d.used[p] = u
}

// host is a guard with two volumes of tenants and one of operators.
type host struct {
	*testing.T
	*drive
	guard           *Guard
	ended           map[pando.InstanceID]string
	acme, bank, own pando.VolumePart
	sharing         map[pando.InstanceID]pando.Volume // of the service acme/web
}

func onHost(t *testing.T, test func(h *host)) {
	synctest.Test(t, func(t *testing.T) {
		part := func(tenant pando.Tenant) pando.VolumePart {
			return pando.VolumePart{Service: pando.ServiceKey{Tenant: tenant, Name: "db"}, Name: "data", Part: "1"}
		}
		h := &host{T: t, drive: &drive{bytes: 8 << 30, used: map[pando.VolumePart]pando.VolumeUse{}},
			ended: map[pando.InstanceID]string{}, acme: part("acme"), bank: part("bank"),
			own: part(pando.DefaultTenant)}
		h.guard = New(Config{Host: "h1", Disk: h.drive, Clock: sim.Clock{},
			Log: slog.New(slog.DiscardHandler), Held: func() (out []Held) {
				h.mu.Lock()
				defer h.mu.Unlock()
				for _, p := range []pando.VolumePart{h.acme, h.bank, h.own} {
					id := pando.InstanceID(p.Service.Tenant) + "-1"
					if h.ended[id] == "" {
						i := pando.Instance{ID: id, Service: p.Service, Ordinal: 1}
						out = append(out, HeldBy(i, pando.Spec{Volumes: []pando.Volume{{Name: "data"}}})...)
					}
				}
				for id, v := range h.sharing {
					if h.ended[id] == "" {
						i := pando.Instance{ID: id, Service: pando.ServiceKey{Tenant: "acme", Name: "web"}}
						out = append(out, HeldBy(i, pando.Spec{Volumes: []pando.Volume{v}})...)
					}
				}
				return out
			}, End: func(i pando.InstanceID, why string) { h.set(func() { h.ended[i] = why }) }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); h.guard.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		time.Sleep(2 * time.Second) // everything is measured once
		test(h)
	})
}

// stopped fails unless exactly these instances were ended.
func (h *host) stopped(want ...pando.InstanceID) {
	h.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	got, wanted := fmt.Sprint(h.ended), map[pando.InstanceID]bool{}
	for _, id := range want {
		wanted[id] = h.ended[id] != ""
	}
	for id := range h.ended {
		if !wanted[id] {
			h.Fatalf("ended: %s, want %q", got, want)
		}
	}
	if len(h.ended) != len(want) {
		h.Fatalf("ended: %s, want %q", got, want)
	}
}

// why returns the reason of an end, or "".
func (h *host) why(id pando.InstanceID) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended[id]
}

func (h *host) admit(p pando.VolumePart) error {
	return h.guard.Admit(h.Context(), []Held{{"next", p, 10 << 30, 655360}})
}

func TestAVolumeThatOutgrowsItsSizeIsStopped(t *testing.T) {
	onHost(t, func(h *host) {
		h.set(func() { h.bytes = 1 << 40 })
		h.grow(h.acme, 10<<10)
		h.grow(h.bank, 5<<10)
		h.grow(h.own, 500<<10) // of the operators, without a size
		time.Sleep(2 * sizeLookMax)
		h.stopped()
		h.grow(h.acme, 1)
		time.Sleep(2 * sizeLookMax)
		h.stopped("acme-1")
		if why := h.why("acme-1"); !strings.Contains(why, "volume data/1 of acme/db has 10241 MiB of at most 10240 MiB") {
			t.Errorf("the reason is %q", why)
		}
		if err := h.admit(h.acme); err == nil || !strings.Contains(err.Error(), "10241 MiB") {
			t.Errorf("its next start: %v", err)
		}
		if err := h.admit(h.bank); err != nil {
			t.Errorf("a start of another tenant: %v", err)
		}
		h.grow(h.acme, -100)
		if err := h.admit(h.acme); err != nil {
			t.Errorf("a start after files were removed: %v", err)
		}
	})
}

// A service that shares a volume of another one writes within a limit, whether or not an instance of
// the owner runs. The limit of one spec ends no instance of another.
func TestAVolumeOfAnotherServiceHasALimit(t *testing.T) {
	onHost(t, func(h *host) {
		borrowed := pando.VolumePart{Service: pando.ServiceKey{Tenant: "acme", Name: "db"}, Name: "media",
			Part: "shared"}
		media := pando.Volume{Name: "media", Of: "db", Shared: true}
		small := media
		small.Bytes = 100 * mib
		h.set(func() {
			h.bytes = 1 << 40
			h.sharing = map[pando.InstanceID]pando.Volume{"web-1": media, "web-2": small}
		})
		h.grow(borrowed, 90)
		time.Sleep(2 * sizeLookMax)
		h.stopped()
		h.grow(borrowed, 20)
		time.Sleep(2 * sizeLookMax)
		h.stopped("web-2")
		h.grow(borrowed, 10<<10)
		time.Sleep(2 * sizeLookMax)
		h.stopped("web-1", "web-2")
		if why := h.why("web-1"); !strings.Contains(why, "volume media/shared of acme/db has 10350 MiB") {
			t.Errorf("the reason is %q", why)
		}
	})
}

// A disk that fills is no less full because the volume is another service's.
func TestAVolumeOfAnotherServiceThatFillsTheDiskIsStopped(t *testing.T) {
	onHost(t, func(h *host) {
		borrowed := pando.VolumePart{Service: pando.ServiceKey{Tenant: "acme", Name: "db"}, Name: "media",
			Part: "shared"}
		h.set(func() {
			h.sharing = map[pando.InstanceID]pando.Volume{"web-1": {Name: "media", Of: "db", Shared: true}}
		})
		time.Sleep(sizeLookMax * 3 / 2) // between two measurements
		h.grow(borrowed, 7000)
		time.Sleep(2 * roomLook)
		h.stopped("web-1")
	})
}

func TestAVolumeOfDeepFoldersIsStopped(t *testing.T) {
	onHost(t, func(h *host) {
		h.set(func() { h.used[h.acme], h.used[h.own] = pando.VolumeUse{Deep: true}, pando.VolumeUse{Deep: true} })
		time.Sleep(2 * sizeLookMax)
		h.stopped("acme-1")
		if err := h.admit(h.acme); err == nil || !strings.Contains(err.Error(), "256 folders") {
			t.Errorf("its next start: %v", err)
		}
	})
}

func TestAVolumeOfManyFilesIsStopped(t *testing.T) {
	onHost(t, func(h *host) {
		h.set(func() { h.used[h.acme] = pando.VolumeUse{Files: 700_000} })
		time.Sleep(2 * sizeLookMax)
		h.stopped("acme-1")
		if why := h.why("acme-1"); !strings.Contains(why, "700000 files of at most 655360") {
			t.Errorf("the reason is %q", why)
		}
	})
}

// A disk of 8 GiB has a reserve of 2 GiB.
func TestTheVolumeThatFillsTheDiskIsStoppedAlone(t *testing.T) {
	onHost(t, func(h *host) {
		h.grow(h.bank, 3000) // long before
		h.grow(h.own, 100)
		time.Sleep(2 * sizeLookMax)
		h.grow(h.acme, 3500)
		h.grow(h.bank, 20)
		h.grow(h.own, 20)
		time.Sleep(2 * roomLook)
		h.stopped("acme-1")
		if why := h.why("acme-1"); !strings.Contains(why, "host h1 has 1552 MiB free of 8192 MiB, and keeps 2048 MiB: "+
			"volume data/1 of acme/db grew most, by 3500 MiB") {
			t.Errorf("the reason is %q", why)
		}
		for range 100 { // the others write slowly, and continue
			h.grow(h.bank, 2)
			time.Sleep(roomLook)
		}
		h.stopped("acme-1")
		if err := h.admit(h.acme); err == nil || !strings.Contains(err.Error(), "grew most") {
			t.Errorf("the next start of the one that filled it: %v", err)
		}
		if err := h.admit(h.bank); err != nil {
			t.Errorf("a start of another tenant: %v", err)
		}
		h.grow(h.acme, -3000) // somebody made room
		time.Sleep(2 * roomLook)
		if err := h.admit(h.acme); err != nil {
			t.Errorf("a start after there is room: %v", err)
		}
	})
}

func TestOperatorsAreStoppedLast(t *testing.T) {
	onHost(t, func(h *host) {
		h.grow(h.own, 5000)
		h.grow(h.bank, 1500)
		time.Sleep(2 * roomLook)
		h.stopped("bank-1")
		h.grow(h.own, 500)
		time.Sleep(2 * roomLook)
		h.stopped("bank-1", "default-1")
	})
}

func TestAnInnocentVolumeIsNeverNamed(t *testing.T) {
	onHost(t, func(h *host) {
		h.grow(h.bank, 3000)
		time.Sleep(2 * sizeLookMax)
		h.set(func() {
			h.slow, h.reads = 100*time.Millisecond, 0
			h.other = 5 << 30 // something that is no volume
		})
		time.Sleep(time.Minute)
		h.stopped()
		if n := h.measured(); n > 60 {
			t.Errorf("%d measurements in a minute in which nothing grew", n)
		}
		h.set(func() { h.other = 7 << 30 })
		time.Sleep(time.Minute)
		if err := h.guard.MayWrite(); !errors.Is(err, pando.ErrStoreFull) {
			t.Errorf("a write on a full disk: %v", err)
		}
		if err := h.admit(h.bank); err == nil || !strings.Contains(err.Error(), "keeps 2048 MiB") {
			t.Errorf("a start on a full disk: %v", err)
		}
	})
}

func TestAMeasurementTakesLittleOfTheTime(t *testing.T) {
	onHost(t, func(h *host) {
		h.set(func() { h.slow, h.reads = 2*time.Second, 0 })
		time.Sleep(10 * time.Minute)
		if n := h.measured(); n < 10 || n > 60 { // of three volumes, each at most a twentieth
			t.Errorf("%d measurements of 2s in 10 minutes", n)
		}
	})
}
