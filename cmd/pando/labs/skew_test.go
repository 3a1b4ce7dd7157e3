package labs

import (
	"testing"
	"time"
)

func TestTheSkewsOfALabAreOfItsHosts(t *testing.T) {
	got, err := skewsOf(map[string]string{"host2": "-60s", "host1": "1h"}, 2)
	if err != nil || got["host2"] != -time.Minute || got["host1"] != time.Hour {
		t.Errorf("%v: %v", got, err)
	}
	for _, bad := range []map[string]string{{"host3": "1s"}, {"host0": "1s"}, {"web": "1s"},
		{"host1": "60"}} {
		if got, err := skewsOf(bad, 2); err == nil {
			t.Errorf("%v is taken: %v", bad, got)
		}
	}
}
