package service

import (
	"errors"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

// scale --wait ends as soon as its number is there or cannot come any more.
func TestScaleWaitsForItsOwnPin(t *testing.T) {
	hour := consoletest.Noon.Add(time.Hour)
	status := func(version, rotating int, pin *pando.Pin) pando.ServiceStatus {
		st := pando.ServiceStatus{Version: pando.StoreRevision(version), InRotation: rotating}
		st.ServiceKey, st.Pin, st.Phase = pando.DefaultService("web"), pin, pando.ServiceServing
		st.Instances = make([]pando.InstanceStatus, rotating)
		return st
	}
	own := &pando.Pin{Instances: 3, Until: hour}
	leaving := status(8, 1, own)
	leaving.Removing = true
	draining := status(8, 3, own)
	draining.Instances = append(draining.Instances, pando.InstanceStatus{})
	reserve := status(8, 3, own)
	reserve.Instances = append(reserve.Instances,
		pando.InstanceStatus{Instance: pando.Instance{Warm: true}})
	degraded := status(8, 3, own)
	degraded.Phase = pando.ServiceDegraded
	for _, c := range []struct {
		name string
		st   pando.ServiceStatus
		done bool
		err  error
	}{
		{"all are there", status(7, 3, own), true, nil},
		{"some are missing", status(8, 2, own), false, nil},
		{"one more drains", draining, false, nil},
		{"a reserve beside them", reserve, true, nil},
		{"degraded", degraded, false, nil},
		{"the answer of a server that is behind", status(6, 3, nil), false, nil},
		{"the pin is over", status(9, 2, nil), false, pando.ErrNotReady},
		{"all are there, and the pin is over", status(9, 3, nil), true, nil},
		{"another number", status(9, 2, &pando.Pin{Instances: 2, Until: hour}), false,
			pando.ErrNotReady},
		{"ended by auto", status(9, 2, &pando.Pin{Instances: 3, Until: consoletest.Noon}), false,
			pando.ErrNotReady},
		{"the service leaves", leaving, false, pando.ErrRefused},
	} {
		done, err := pinned(status(7, 1, own), 3)(c.st)
		if done != c.done || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, done, err, c.done, c.err)
		}
	}
	zero := status(8, 0, &pando.Pin{})
	zero.Phase = pando.ServiceDegraded
	if done, err := pinned(status(7, 1, &pando.Pin{}), 0)(zero); !done || err != nil {
		t.Errorf("scaled to 0: %v, %v", done, err)
	}
}
